"""DREAM (Hu et al. 2505.19201): a drafter with cross-attention to the target's features, on the most important image tokens."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.eagle2 import TreeSize, limited_tree
from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, number, parts, switch


@dataclass(frozen=True)
class Parameters(TreeSize):
    """The paper keeps 75 % of the visual tokens and uses a tree with depth 6, width 4 and 32 nodes."""

    depth: int = number(5, 1, 12, "Depth of the tree; each level takes one drafter pass. The paper uses 6.", "levels")
    width: int = number(6, 1, 16, "Beam width, and children tried below each beam node; the paper uses 4.", "nodes")
    nodes: int = number(0, 0, 128, "Nodes to verify; 0 chooses the fastest number in every round; the paper uses 32.", "nodes")
    keep: float = number(
        0.75, 0.05, 1.0, "Share of the visual tokens that the drafter reads: the ones that the target attends to most.", step=0.05
    )
    cross_attention: bool = switch(True, "Cross-attention to the target's features; off closes the gates.")


@Card(
    name="dream",
    modality=("vision_language",),
    exactness=TOKEN_EXACT,
    family="features",
    parameters=Parameters,
    weights=("vlm_dream",),
)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.dream.drafter import CrossDrafter

    network = resources.drafter_weights("dream")
    if not parameters.cross_attention:
        network = network.without_cross_attention()
    builder = limited_tree(parameters, resources)
    drafter = CrossDrafter(network, resources.picture or parts.Layout(0, (), ()), resources.target, parameters.keep)
    return parts.single_drafter(drafter, builder, parts.Match(), drafter.reads, draft_name="dream")
