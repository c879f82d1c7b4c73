"""EAGLE-2 (Li et al. 2406.16858): the drafter of EAGLE, and a tree that follows its confidence."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.dynamic_tree import EagleTree, eagle_heads
from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper, parts


@dataclass(frozen=True)
class Parameters(EagleTree):
    """The paper's values for a 7B target are depth 6, width 10 and 59 nodes (60 with the root)."""


@Card(
    name="eagle2",
    title="EAGLE-2",
    summary="The drafter's confidence stands in for acceptance: expand the best beam, then keep the best nodes of all.",
    modality=("text", "vision_language", "image"),
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="features",
    claim="3.05 to 4.26×, 20 to 40 % over EAGLE.",
    differs=(
        "τ is {acceptance.eagle2.all} with 25 nodes at temperature 0, the fixed tree's {acceptance.eagle.all} (sixty held-out "
        "prompts of six kinds). At 1 the tokens are drawn from the drafter's distribution, which the paper's are not: "
        "{rules.eagle2.drawn} instead of {rules.eagle2.likeliest}. The head learned from {weights.eagle.thousand} thousand "
        "dialogues. By default the depth is what pays here, two levels at least: {speed.eagle2.greedy} with τ "
        "{speed.eagle2.tau} at 0, {speed.eagle2.warm} with {speed.eagle2.tau_warm} at 1."
    ),
    paper=Paper(
        "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
        "Li et al.",
        2024,
        "2406.16858",
        "EMNLP",
    ),
    look_at="Two phases at temperature 0: the beam expands level by level, then the losers fade. Sure rounds give deep trees, "
    "doubtful wide ones; drawn tokens are never dropped.",
    parameters=Parameters,
    weights=("eagle",),
    pair="`python -m specviz run --method eagle2 --target llama-3.1-8b-instruct --draft EAGLE-LLaMA3.1-Instruct-8B-safetensors "
    '--prompt "Why?"` with yuhuili/EAGLE-LLaMA3.1-Instruct-8B, a torch zip: `pairs` tells how to convert it; or with a '
    "model's own MTP layer, as below. On pictures too, with heads of EAGLE-1/2 in this layout; `eagle3` with those below",
)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    return eagle_heads(parameters, resources, "eagle", "eagle2", default_depth=4)
