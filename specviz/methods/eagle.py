"""EAGLE (Li et al. 2401.15077): one decoder layer predicts the target's next hidden states and drafts a tree of fixed shape."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.eagle2 import acceptance_of, tree_costs
from specviz.methods.registry import IN_DISTRIBUTION, Card, MethodResources, choice, parts, published_tree


@dataclass(frozen=True)
class Parameters:
    """Tree and acceptance rule. At temperature 0 all rules match greedily."""

    tree: str = choice(
        "published",
        ("published", "fitted"),
        "The published 25 nodes, or as many of the most often accepted nodes as run fastest here. Images use the 25.",
    )
    rule: str = choice(
        "without_replacement",
        ("without_replacement", "match", "rejection"),
        "At temperatures above 0. Without replacement: sampled tokens with rejection sampling. Match: sampled tokens with "
        "sample-and-match (same text as the autoregressive run). Rejection: the drafter's most likely tokens with rejection of "
        "point masses.",
    )


@Card(
    name="eagle",
    modality=("text", "image"),
    exactness=IN_DISTRIBUTION.except_with("rule", "match"),
    family="features",
    parameters=Parameters,
    weights=("eagle",),
)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    network = resources.drafter_weights("eagle")
    builder = parts.Sampled(_shape(parameters, resources), ranked=parameters.rule == "rejection")
    return parts.single_drafter(
        parts.feature_drafter(network, resources.guidance), builder, acceptance_of(parameters.rule), network.config.taps, "eagle"
    )


def _shape(parameters: Parameters, resources: MethodResources) -> parts.TreeShape:
    if parameters.tree == "published" or resources.grid is not None:  # the other tree was fitted on text
        return published_tree("eagle")
    tree = parts.CalibratedTree.load(resources.tree_file("eagle"))
    policy = tree_costs(resources, None, 1).now()
    return tree.best(max(2, policy.fixed([len(path) for path in tree.paths], tree.probability)))
