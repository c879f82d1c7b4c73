"""EAGLE-3 (Li et al. 2503.01840): three of the target's hidden states fused, and a drafter trained on its own outputs."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.dynamic_tree import EagleTree, eagle_heads, tree_depth
from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper, parts


@dataclass(frozen=True)
class Parameters(EagleTree):
    """The paper's values for an 8B target are depth 8, width 10 and 59 nodes (60 with the root)."""

    depth: int = tree_depth(5, 8)


@Card(
    name="eagle3",
    title="EAGLE-3",
    summary="Low, middle and high hidden states are fused, and the drafter was trained on what it feeds itself.",
    published=("vision_language",),
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="features",
    claim="5.5× and τ 6.6 on Vicuna 13B, 4.4× and τ 6.2 on Llama 3.1 8B, at temperature 0.",
    differs=(
        "With 25 nodes τ is {acceptance.eagle3.all} at temperature 0 over sixty held-out prompts of six kinds, "
        "{acceptance.eagle3.maths} on maths and {acceptance.eagle3.questions} on questions; as deep as pays "
        "{speed.eagle3.greedy} with {speed.eagle3.tau}, {speed.eagle3.warm} at 1. The head learned from "
        "{weights.eagle3.thousand} thousand of the target's dialogues, the paper's from half a million; acceptance stays level "
        "with depth."
    ),
    paper=Paper(
        "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
        "Li et al.",
        2025,
        "2503.01840",
        "NeurIPS",
    ),
    look_at="Acceptance by depth stays flat where EAGLE's falls after the first: the drafter met its own mistakes in training.",
    parameters=Parameters,
    weights=("eagle3",),
)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    return eagle_heads(parameters, resources, "eagle3", "eagle3", default_depth=5)
