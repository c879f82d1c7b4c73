"""EAGLE-2 (Li et al. 2406.16858): EAGLE's drafter with a dynamic tree, grown where the drafter is confident."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.dynamic_tree import EagleTree, eagle_heads
from specviz.methods.registry import IN_DISTRIBUTION, Card, MethodResources, parts


@dataclass(frozen=True)
class Parameters(EagleTree):
    """For a 7B target, the paper uses depth 6, width 10 and 59 nodes (60 with the root)."""


@Card(
    name="eagle2",
    modality=("text", "vision_language", "image"),
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="features",
    parameters=Parameters,
    weights=("eagle",),
)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    return eagle_heads(parameters, resources, "eagle", "eagle2", default_depth=4)
