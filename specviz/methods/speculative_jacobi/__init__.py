"""Speculative Jacobi decoding (Teng et al. 2410.01699): the target redraws and tests a window of guesses."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import IN_DISTRIBUTION, Card, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """The paper's window is 16 codes, filled at random (Lumina-mGPT) or by repeating the left neighbour (LlamaGen)."""

    window: int = number(16, 1, 96, "Codes guessed at once.", "codes")
    fill: str = choice("repeat", ("repeat", "random"), "What fills a position that is new to the window.")


@Card(name="speculative_jacobi", modality=("image",), exactness=IN_DISTRIBUTION, family="memory", parameters=Parameters)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    from specviz.methods.speculative_jacobi.drafter import JacobiWindow, WindowChain

    drafter = JacobiWindow(parameters.window, parameters.fill, resources.target.vocab_size)
    return parts.single_drafter(drafter, WindowChain(), parts.Rejection())
