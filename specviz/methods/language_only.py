"""Language-only drafting (Gagrani et al. 2404.08856): a small text model without the picture drafts for a vision-language
model."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.dynamic_tree import acceptance_of
from specviz.methods.registry import TOKEN_EXACT, Card, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """The paper's γ, and the acceptance rule."""

    gamma: int = number(5, 1, 16, "γ: how many tokens the text model writes before the target verifies.", "tokens")
    rule: str = choice(
        "match",
        ("match", "rejection"),
        "Sample-and-match (equal to the autoregressive run token for token), or the ratio test of speculative sampling.",
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
def compose(parameters: Parameters, resources: parts.VisionLanguageResources) -> parts.Composition:
    builder, acceptance = parts.Sampled(parts.chain(parameters.gamma)), acceptance_of(parameters.rule)
    return parts.chain_drafter(resources.draft_model(), builder, acceptance, resources.picture)
