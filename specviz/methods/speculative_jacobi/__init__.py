"""Speculative Jacobi decoding (Teng et al. 2410.01699): every target pass verifies and resamples a window of codes."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import IN_DISTRIBUTION, Card, MethodResources, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """The paper uses a window of 16 codes; new positions get a random code (Lumina-mGPT) or the left neighbour's (LlamaGen)."""

    window: int = number(16, 1, 96, "Window size.", "codes")
    fill: str = choice(
        "repeat", ("repeat", "random"), "Code at a position that is new to the window: the left neighbour's, or a random one."
    )


@Card(name="speculative_jacobi", modality=("image",), exactness=IN_DISTRIBUTION, family="memory", parameters=Parameters)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.speculative_jacobi.drafter import JacobiWindow, WindowChain

    drafter = JacobiWindow(parameters.window, parameters.fill, resources.target.vocab_size)
    return parts.single_drafter(drafter, WindowChain(), parts.Rejection())
