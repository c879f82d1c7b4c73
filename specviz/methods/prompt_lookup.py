"""Prompt lookup decoding (Saxena 2023): copy the continuation of an earlier occurrence of the current suffix."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import TOKEN_EXACT, Card, choice, number, parts, switch


@dataclass(frozen=True)
class Parameters:
    """The defaults are the reference implementation's values."""

    longest: int = number(3, 1, 8, "Longest suffix searched for; longer ones are tried first.", "tokens")
    shortest: int = number(1, 1, 8, "Shortest suffix searched for.", "tokens")
    copied: int = number(10, 1, 64, "How many tokens are copied after the match.", "tokens")
    occurrence: str = choice("earliest", ("earliest", "latest"), "Which earlier occurrence to copy from.")
    partial: bool = switch(False, "Allow a shorter copy when the match is near the end of the text.")


@Card(name="prompt_lookup", modality=("text", "vision_language"), exactness=TOKEN_EXACT, family="memory", parameters=Parameters)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    drafter = parts.PromptCopy(
        parameters.longest,
        parameters.shortest,
        parameters.copied,
        parameters.occurrence == "latest",
        parameters.partial,
    )
    return parts.single_drafter(drafter, parts.Copied(), parts.Match())
