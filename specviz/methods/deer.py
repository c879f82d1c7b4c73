"""DEER (2512.15176): a masked-diffusion drafter fills a whole block in one denoising step, verified by the ratio test."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import IN_DISTRIBUTION, Card, number, parts, switch


@dataclass(frozen=True)
class Parameters:
    """The paper's drafter has 0.5 billion parameters and fills blocks of 32; the shipped one has 1.4 million."""

    block: int = number(6, 1, 32, "Masks that one denoising step fills; the paper's value is 32.", "tokens")
    aligned: bool = switch(
        True, "Draft with the model after two further training stages, which align it with the target; off: before them."
    )


@Card(name="deer", exactness=IN_DISTRIBUTION, family="heads", parameters=Parameters, weights=("masked_lm", "deer"))
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    from specviz.methods.diffuspec.lattice import MaskedBlock

    name = "deer" if parameters.aligned else "masked_lm"
    drafter = MaskedBlock(resources.drafter_weights(name), parameters.block)
    return parts.single_drafter(drafter, parts.Sampled(parts.chain(parameters.block)), parts.Rejection(), draft_name=name)
