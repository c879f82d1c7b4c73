"""Speculative sampling: a small model drafts a chain, verified by rejection sampling.

Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318).
"""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import IN_DISTRIBUTION, Card, TextResources, number, parts


@dataclass(frozen=True)
class Parameters:
    """Draft length."""

    gamma: int = number(5, 1, 16, "γ: draft length.", "tokens")


@Card(
    name="speculative_sampling",
    exactness=IN_DISTRIBUTION,
    family="model",
    parameters=Parameters,
    weights=("small_draft",),
    needs_draft=True,
)
def compose(parameters: Parameters, resources: TextResources) -> parts.Composition:
    return parts.chain_drafter(resources.draft_model(), parts.Sampled(parts.chain(parameters.gamma)), parts.Rejection())
