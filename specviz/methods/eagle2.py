"""EAGLE-2 (Li et al. 2406.16858): EAGLE's drafter with a dynamic tree, grown where the drafter is confident.

Later feature drafters take the dynamic tree from here, with a fixed depth and size or with the fastest ones on this machine;
other trees take the costs of their rounds and the choice of an acceptance rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.methods.registry import IN_DISTRIBUTION, Card, MethodResources, choice, number, parts
from specviz.trace.notes.drafts import TreeDepth

WIDTH = number(6, 1, 16, "Beam width, and children tried below each beam node; the paper uses 10.", "nodes")
NODES = number(0, 0, 128, "Nodes to verify; 0 chooses the fastest number in every round; the paper uses 59.", "nodes")


def tree_depth(default: int, paper: int) -> Any:
    """Return the parameter for the depth of a tree.

    ``default``: depth without a calibration of the drafter. ``paper``: depth in the paper.
    """
    return number(
        0, 0, 12,
        "Depth of the tree; each level takes one drafter pass. 0: the fastest depth on this machine if the drafter was "
        f"calibrated for this target and width, else {default}. Trees of sampled tokens choose a depth of at most {default} in "
        f"every round. The paper uses {paper}.",
        "levels",
    )  # fmt: skip


@dataclass(frozen=True)
class TreeSize:
    """Tree parameters of EAGLE-2 and successors; 0 as depth or number of nodes chooses the fastest."""

    depth: int = tree_depth(4, 6)
    width: int = WIDTH
    nodes: int = NODES


@dataclass(frozen=True)
class EagleTree(TreeSize):
    """Tree parameters and acceptance rule of EAGLE-2 and EAGLE-3."""

    rule: str = choice(
        "without_replacement",
        ("without_replacement", "match", "rejection"),
        "At temperatures above 0. Without replacement: sampled tokens with rejection sampling. Match: the drafter's most likely "
        "tokens with sample-and-match (same text as the autoregressive run). Rejection: the most likely tokens with rejection "
        "of point masses, as published.",
    )


def acceptance_of(rule: str) -> parts.Acceptance:
    return parts.Match() if rule == "match" else parts.Rejection()


def tree_costs(
    resources: MethodResources, network: Any, rows: int, per_node: int = 1, once: bool = False
) -> parts.CurrentCosts:  # fmt: skip
    """Return a tree-size policy from the current costs of a target pass and of a forward of ``network`` over ``rows`` rows.

    ``per_node``: rows of a target pass per node. ``network``: None to time no forward before the first run. ``once``: whether one
    forward yields all levels.
    """
    tier = resources.target.tier
    costs = parts.CurrentCosts(resources.cost_curve, lambda: resources.forward_cost(network, rows), tier, per_node, once)
    costs.now()  # measures missing costs before the first step
    return costs


def dynamic_tree(
    size: TreeSize, resources: MethodResources, network: Any, kind: str, profile: str, default_depth: int,
    sampled: bool = False,
) -> parts.TreeBuilder[parts.FeatureDrafter]:  # fmt: skip
    """Return a tree builder for ``network``, drafter heads of this ``kind``.

    ``profile``: calibration file that replaces a depth of 0, if made for these heads, this width and this target.
    ``default_depth``: replacement otherwise. ``sampled``: at temperatures above 0, build trees of sampled tokens.
    """
    rows = 1 if resources.guidance is None else 2  # guidance adds an unconditional row per node
    if sampled and not resources.warp.greedy:
        nodes = size.nodes or tree_costs(resources, network, rows)
        return parts.SampledDynamicTree(size.depth or default_depth, size.width, nodes, network.config.certainty)
    if size.depth and size.nodes:
        return parts.Dynamic(size.depth, size.width, size.nodes)
    policy = tree_costs(resources, network, size.width * rows)
    if size.depth:
        return parts.Dynamic(size.depth, size.width, policy)
    known = parts.DepthProfile.load(resources.tree_file(profile))
    made_for = (known.drafter, known.target, known.width)
    depth = TreeDepth(default_depth)
    if resources.uses_shipped_weights and made_for == (kind, resources.target.name, size.width):
        depth = parts.fastest_depth(known, policy.now(), resources.warp.temperature, size.nodes)
    return parts.Dynamic(depth.levels, size.width, size.nodes or policy, chosen=depth)


def limited_tree(size: TreeSize, resources: MethodResources, per_node: int = 1) -> parts.Dynamic:
    """Return a tree builder with a fixed depth and beam width; 0 ``nodes`` chooses the fastest number in every round."""
    return parts.Dynamic(size.depth, size.width, size.nodes or tree_costs(resources, None, size.width, per_node))


def eagle_heads(
    parameters: EagleTree, resources: MethodResources, kind: str, profile: str, default_depth: int
) -> parts.Composition:
    """Compose EAGLE heads of this ``kind``, with the tree and acceptance rule of ``parameters``."""
    network, acceptance = resources.drafter_weights(kind), acceptance_of(parameters.rule)
    sampled = parameters.rule == "without_replacement"
    builder = dynamic_tree(parameters, resources, network, kind, profile, default_depth, sampled)
    if resources.picture is None:
        drafter = parts.feature_drafter(network, resources.guidance)
        return parts.single_drafter(drafter, builder, acceptance, network.config.taps, kind)
    rows: Any = parts.with_picture(network, resources.picture)
    return parts.single_drafter(rows, builder, acceptance, rows.reads, f"{kind} with visual rows")


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
