"""DDTree (Ringel and Romano 2604.12989): a tree of the most probable paths through one block of independent distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.methods.eagle2 import tree_costs
from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """The paper uses DFlash with blocks of 16, and trees of 16 to 1024 nodes."""

    drafter: str = choice(
        "medusa",
        ("medusa", "falcon", "masked_lm", "deer"),
        "Source of the block: Medusa's heads, Falcon's first pass, or the masked-diffusion model of DiffuSpec or of DEER. "
        "For a published block drafter, use dflash or dspark with the tree best_first.",
    )
    nodes: int = number(0, 0, 200, "Nodes of the tree; 0 chooses the fastest number in every round.", "nodes")
    block: int = number(6, 1, 32, "Block length of a masked-diffusion model.", "tokens")


@Card(
    name="ddtree", exactness=TOKEN_EXACT, family="heads", parameters=Parameters, weights=("medusa", "falcon", "masked_lm", "deer")
)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.diffuspec.lattice import MaskedBlock
    from specviz.methods.medusa.drafter import ParallelDrafter

    name = parameters.drafter
    network = resources.drafter_weights(name)
    drafter: Any
    taps: tuple[int, ...] = ()
    if name in ("masked_lm", "deer"):
        drafter = MaskedBlock(network, parameters.block)
    else:
        drafter = ParallelDrafter(network) if name == "medusa" else parts.BlockDrafter(network)
        taps = (network.config.tap,)
    size = parameters.nodes or tree_costs(resources, None, 1)
    return parts.Composition(parts.BestFirst(drafter, size), parts.Match(), taps, name)
