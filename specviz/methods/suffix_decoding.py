"""SuffixDecoding (Oliaro et al. 2411.04975): suffix trees with counts, over this text and earlier outputs."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import TOKEN_EXACT, Card, choice, number, parts

REMEMBERED = number(64, 0, 512, "Number of your earlier outputs that are also searched.", "outputs")


def output_store(resources: parts.MethodResources, remembered: int) -> parts.OutputStore | None:
    """Return the store of this user's last ``remembered`` outputs of the target, None for 0."""
    if not remembered:
        return None
    store = resources.remember(("target_outputs", resources.target.name), parts.OutputStore)
    store.most_outputs = remembered
    return store


@dataclass(frozen=True)
class Parameters:
    """The defaults are the values of the authors' implementation."""

    most: int = number(64, 1, 64, "Maximum tokens drafted, however long the match.", "tokens")
    factor: float = number(1.0, 0.0, 4.0, "Drafted tokens allowed per matched token; the paper's α.", step=0.25)
    offset: float = number(0.0, -4.0, 8.0, "Drafted tokens allowed in addition.", "tokens", step=0.5)
    floor: float = number(0.1, 0.01, 1.0, "Minimum product of count shares down to a drafted token.", step=0.01)
    shape: str = choice("tree", ("tree", "path"), "The likeliest tokens as a tree, or only the most frequent path.")
    threshold: float = number(
        0.0,
        0.0,
        16.0,
        "Draft nothing if the score, the expected number of accepted tokens, is below this.",
        "tokens",
        step=0.5,
    )
    remembered: int = REMEMBERED


@Card(name="suffix_decoding", modality=("text", "vision_language"), exactness=TOKEN_EXACT, family="memory", parameters=Parameters)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    store = output_store(resources, parameters.remembered)
    rule = parts.LengthRule(parameters.most, parameters.factor, parameters.offset, parameters.floor, parameters.shape == "tree")
    return parts.single_drafter(parts.Retrieval(store, rule, parameters.threshold), parts.Retrieved(), parts.Match())
