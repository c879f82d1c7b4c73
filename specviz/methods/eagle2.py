"""EAGLE-2 (Li et al. 2406.16858): the drafter of EAGLE, and a tree that follows its confidence."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.dynamic_tree import EagleTree, eagle_heads
from specviz.methods.registry import IN_DISTRIBUTION, Card, parts


@dataclass(frozen=True)
class Parameters(EagleTree):
    """The paper's values for a 7B target are depth 6, width 10 and 59 nodes (60 with the root)."""


@Card(
    name="eagle2",
    modality=("text", "vision_language", "image"),
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="features",
    parameters=Parameters,
    weights=("eagle",),
)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    return eagle_heads(parameters, resources, "eagle", "eagle2", default_depth=4)
