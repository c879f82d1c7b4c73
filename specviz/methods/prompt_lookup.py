"""Prompt lookup decoding (Saxena 2023): copy the continuation of an earlier occurrence of the current suffix."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, choice, number, parts, switch


@dataclass(frozen=True)
class Parameters:
    """The defaults are those of the reference implementation."""

    longest: int = number(3, 1, 8, "Longest suffix to look up; longer suffixes are tried first.", "tokens")
    shortest: int = number(1, 1, 8, "Shortest suffix to look up.", "tokens")
    copied: int = number(10, 1, 64, "Number of tokens to copy after the match.", "tokens")
    occurrence: str = choice(
        "earliest", ("earliest", "latest"), "Copy after the earliest or the latest occurrence of the suffix."
    )
    partial: bool = switch(False, "Allow shorter copies from matches near the end of the text.")


@Card(name="prompt_lookup", modality=("text", "vision_language"), exactness=TOKEN_EXACT, family="memory", parameters=Parameters)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    drafter = parts.PromptCopy(
        parameters.longest,
        parameters.shortest,
        parameters.copied,
        parameters.occurrence == "latest",
        parameters.partial,
    )
    return parts.single_drafter(drafter, parts.ChainBuilder(), parts.Match())
