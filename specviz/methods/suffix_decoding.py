"""SuffixDecoding (Oliaro et al. 2411.04975): drafts from suffix trees with counts, over this text and earlier outputs."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, choice, number, parts

REMEMBERED = number(64, 0, 512, "Number of your earlier outputs to search, besides this text.", "outputs")


def output_store(resources: MethodResources, remembered: int) -> parts.OutputStore | None:
    """Return the store of the user's last ``remembered`` outputs of the target; None for 0."""
    if not remembered:
        return None
    store = resources.remember(("target_outputs", resources.target.name), parts.OutputStore)
    store.most_outputs = remembered
    store.add(())  # the limit may have shrunk
    return store


@dataclass(frozen=True)
class Parameters:
    """The defaults are those of the authors' implementation."""

    most: int = number(64, 1, 64, "Maximum number of draft tokens.", "tokens")
    factor: float = number(1.0, 0.0, 4.0, "Maximum draft tokens per matched token; α in the paper.", step=0.25)
    offset: float = number(0.0, -4.0, 8.0, "Constant added to that maximum.", "tokens", step=0.5)
    floor: float = number(0.1, 0.01, 1.0, "Minimum path probability of a draft token, estimated from counts.", step=0.01)
    shape: str = choice("tree", ("tree", "path"), "A tree of the most likely tokens, or only the most frequent path.")
    threshold: float = number(
        0.0,
        0.0,
        16.0,
        "Minimum score of a draft: the expected number of accepted tokens.",
        "tokens",
        step=0.5,
    )
    remembered: int = REMEMBERED


@Card(name="suffix_decoding", modality=("text", "vision_language"), exactness=TOKEN_EXACT, family="memory", parameters=Parameters)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    store = output_store(resources, parameters.remembered)
    rule = parts.LengthRule(parameters.most, parameters.factor, parameters.offset, parameters.floor, parameters.shape == "tree")
    return parts.single_drafter(parts.Retrieval(store, rule, parameters.threshold), parts.Retrieved(), parts.Match())
