"""Speculative Jacobi decoding (Teng et al. 2410.01699): the target redraws and tests a window of guesses."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """The paper's window is 16 codes, filled at random (Lumina-mGPT) or by repeating the left neighbour (LlamaGen)."""

    window: int = number(16, 1, 96, "Places guessed at once.", "codes")
    fill: str = choice("repeat", ("repeat", "random"), "What stands at a place that is new to the window.")


@Card(
    name="speculative_jacobi",
    title="Speculative Jacobi",
    summary="No drafter at all: a window of guesses is drawn again from what the last pass thought there, and tested.",
    modality=("image",),
    exactness=IN_DISTRIBUTION,
    family="memory",
    claim="About 2× on Lumina-mGPT and Anole.",
    differs=(
        "Here {images.jacobi.speed} on 64 held-out prompts, with τ {images.jacobi.tau}, and {recorded.jacobi.speed} in the "
        "recorded run of a learned one: what is not sure of itself does not settle before its turn."
    ),
    paper=Paper(
        "Accelerating Auto-regressive Text-to-Image Generation with Training-free Speculative Jacobi Decoding",
        "Teng et al.", 2024, "2410.01699", "ICLR",
    ),
    look_at="The window slides over the picture; flat regions are guessed right at once, outlines take several rounds.",
    parameters=Parameters,
)  # fmt: skip
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    from specviz.methods.speculative_jacobi.drafter import JacobiWindow, WindowChain

    drafter = JacobiWindow(parameters.window, parameters.fill, resources.target.vocab_size)
    return parts.single_drafter(drafter, WindowChain(), parts.Rejection())
