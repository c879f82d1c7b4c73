"""Speculative sampling: a small model drafts a chain, which the ratio test verifies.

Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318).
"""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper, number, parts


@dataclass(frozen=True)
class Parameters:
    """The papers' γ."""

    gamma: int = number(5, 1, 16, "γ: how many tokens the draft model writes before the target verifies.", "tokens")


@Card(
    name="speculative_sampling",
    title="Speculative sampling",
    summary="A small model drafts a few tokens; the target keeps a prefix so that the output distribution is unchanged.",
    exactness=IN_DISTRIBUTION,
    family="model",
    claim="2 to 3× with T5-small drafting for T5-XXL.",
    differs=(
        "Here it is {text.speculative_sampling.greedy} with γ = 5, τ {text.speculative_sampling.tau} at temperature 0, "
        "{text.speculative_sampling.warm} and {text.speculative_sampling.tau_warm} at 1 (three prompts): the default draft "
        "model, of over a million weights, is right five times in ten. The paper's pairs are 11B and 60M parameters."
    ),
    paper=Paper("Fast Inference from Transformers via Speculative Decoding", "Leviathan, Kalman, Matias", 2023, "2211.17192"),
    look_at="Overlapping p and q bars: what they share is the acceptance probability, the rest of p is the residual.",
    parameters=Parameters,
    weights=("small_draft",),
    needs_draft=True,
)
def compose(parameters: Parameters, resources: parts.TextResources) -> parts.Composition:
    return parts.chain_drafter(resources.draft_model(), parts.Sampled(parts.chain(parameters.gamma)), parts.Rejection())
