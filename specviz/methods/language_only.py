"""Language-only drafting (Gagrani et al. 2404.08856): a text model that never sees the image drafts for a vision-language
model."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.eagle2 import acceptance_of
from specviz.methods.registry import TOKEN_EXACT, Card, VisionLanguageResources, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """Draft length and acceptance rule."""

    gamma: int = number(5, 1, 16, "γ: draft length.", "tokens")
    rule: str = choice(
        "match",
        ("match", "rejection"),
        "Sample-and-match (same text as the autoregressive run), or rejection sampling.",
    )


@Card(
    name="language_only",
    modality=("vision_language",),
    exactness=TOKEN_EXACT.except_with("rule", "rejection"),
    family="model",
    parameters=Parameters,
    weights=("vlm_text_only",),
    needs_draft=True,
)
def compose(parameters: Parameters, resources: VisionLanguageResources) -> parts.Composition:
    builder, acceptance = parts.Sampled(parts.chain(parameters.gamma)), acceptance_of(parameters.rule)
    return parts.chain_drafter(resources.draft_model(), builder, acceptance, resources.picture)
