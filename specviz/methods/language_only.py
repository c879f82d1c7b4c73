"""Language-only drafting (Gagrani et al. 2404.08856): a small text model without the picture drafts for a vision-language
model."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.dynamic_tree import acceptance_of
from specviz.methods.registry import TOKEN_EXACT, Card, Paper, choice, number, parts


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
    title="Language-only draft",
    summary="A small language model drafts from the words alone; the picture is for the target.",
    modality=("vision_language",),
    exactness=TOKEN_EXACT.except_with("rule", "rejection"),
    family="model",
    claim="Up to 2.37× for LLaVA-7B with a 115M text model.",
    differs=(
        "Here {vision.language_only.greedy} on two held-out scenes, τ {scenes.language_only.tau} with trees of one size on "
        "four: the grammar of the answers is easily learned, what is in the picture can only be guessed."
    ),
    paper=Paper(
        "On Speculative Decoding for Multimodal Large Language Models",
        "Gagrani et al.",
        2024,
        "2404.08856",
        "CVPR Workshops",
    ),
    look_at="Grammar is drafted well, things are not: rejections sit where the sentence names what only the picture shows.",
    parameters=Parameters,
    weights=("vlm_text_only",),
    needs_draft=True,
)
def compose(parameters: Parameters, resources: parts.VisionLanguageResources) -> parts.Composition:
    builder, acceptance = parts.Sampled(parts.chain(parameters.gamma)), acceptance_of(parameters.rule)
    return parts.chain_drafter(resources.draft_model(), builder, acceptance, resources.picture)
