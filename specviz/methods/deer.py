"""DEER (2512.15176): a masked-diffusion model drafts a block in one denoising step, verified by rejection sampling."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import IN_DISTRIBUTION, Card, MethodResources, number, parts, switch


@dataclass(frozen=True)
class Parameters:
    """The paper's drafter has 0.5 billion parameters and blocks of 32; the shipped drafter has 1.4 million parameters."""

    block: int = number(6, 1, 32, "Block length; the paper uses 32.", "tokens")
    aligned: bool = switch(
        True, "Use the drafter after the two training stages that align it with the target; off: before these stages."
    )


@Card(name="deer", exactness=IN_DISTRIBUTION, family="heads", parameters=Parameters, weights=("masked_lm", "deer"))
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.diffuspec.lattice import MaskedBlock

    name = "deer" if parameters.aligned else "masked_lm"
    drafter = MaskedBlock(resources.drafter_weights(name), parameters.block)
    return parts.single_drafter(drafter, parts.Sampled(parts.chain(parameters.block)), parts.Rejection(), draft_name=name)
