"""EAGLE-3 (Li et al. 2503.01840): a drafter on three fused hidden states of the target, trained on its own outputs."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.eagle2 import EagleTree, eagle_heads, tree_depth
from specviz.methods.registry import IN_DISTRIBUTION, Card, MethodResources, parts


@dataclass(frozen=True)
class Parameters(EagleTree):
    """For an 8B target, the paper uses depth 8, width 10 and 59 nodes (60 with the root)."""

    depth: int = tree_depth(5, 8)


@Card(
    name="eagle3",
    published=("vision_language",),
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="features",
    parameters=Parameters,
    weights=("eagle3",),
)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    return eagle_heads(parameters, resources, "eagle3", "eagle3", default_depth=5)
