"""Builds dynamic trees for feature drafters from a method's parameters: depth and size optimised for this machine, or fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.methods.registry import choice, number, parts
from specviz.trace.notes.drafts import TreeDepth

WIDTH = number(6, 1, 16, "Nodes in the beam, and children tried below each; the paper's value is 10.", "nodes")
NODES = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay off in each round, the paper's value is 59.", "nodes")


def tree_depth(default: int, paper: int) -> Any:
    """Return the parameter of a tree's depth; 0 takes it from the drafter's calibration if there is one, otherwise
    ``default``."""
    return number(
        0, 0, 12,
        "Depth of the tree; each level takes one drafter pass. 0 chooses the fastest depth on this machine, at least 2, if "
        f"the drafter was calibrated for this target and width; otherwise {default}. Drawn trees are as deep as pays off in each "
        f"round, at most {default} levels. The paper's value is {paper}.",
        "levels",
    )  # fmt: skip


@dataclass(frozen=True)
class TreeSize:
    """Tree parameters of EAGLE-2 and its successors; 0 optimises depth or nodes for this machine."""

    depth: int = tree_depth(4, 6)
    width: int = WIDTH
    nodes: int = NODES


@dataclass(frozen=True)
class EagleTree(TreeSize):
    """Tree parameters and acceptance rule of EAGLE-2 and EAGLE-3."""

    rule: str = choice(
        "without_replacement",
        ("without_replacement", "match", "rejection"),
        "When sampling: tokens drawn from the drafter's distribution, as many below each node as pay off, and rejection "
        "without replacement; or its likeliest tokens with sample-and-match (equal to the autoregressive run token for token) "
        "or with rejection of point masses, as published.",
    )


def acceptance_of(rule: str) -> parts.Acceptance:
    """Return sample-and-match for the ``rule`` "match", else rejection sampling."""
    return parts.Match() if rule == "match" else parts.Rejection()


def tree_costs(resources: parts.MethodResources, network: Any, rows: int, per_node: int = 1) -> parts.CurrentCosts:
    """Return a tree-size policy based on the current cost of a target pass and of a forward of ``network`` over ``rows``.

    A node takes ``per_node`` rows of a pass. With ``network`` None, no forward is timed before the first run.
    """
    tier = resources.target.tier
    costs = parts.CurrentCosts(resources.cost_curve, lambda: resources.forward_cost(network, rows), tier, per_node)
    costs.now()  # measures missing costs before the run, not during its first step
    return costs


def dynamic_tree(
    size: TreeSize, resources: parts.MethodResources, network: Any, kind: str, profile: str, default_depth: int,
    drawn: bool = False,
) -> parts.TreeBuilder[parts.FeatureDrafter[Any]]:  # fmt: skip
    """Return the tree builder for ``network``, drafter heads of this ``kind``.

    A depth of 0 is chosen from the measured ``profile`` if that was made with these heads and width on this target, else it is
    ``default_depth``. With ``drawn``, a sampling target gets a tree of sampled tokens, sized in each round.
    """
    rows = 1 if resources.guidance is None else 2  # guidance adds an unconditional row per node
    if drawn and not resources.warp.greedy:
        pays = None if size.nodes else tree_costs(resources, network, rows)
        return parts.SampledDynamicTree(size.depth or default_depth, size.width, size.nodes, pays)
    pays = None if size.depth and size.nodes else tree_costs(resources, network, size.width * rows)
    if size.depth:
        return parts.Dynamic(size.depth, size.width, size.nodes, pays=pays)
    assert pays is not None
    known = parts.DepthProfile.load(resources.tree_file(profile))
    made_for = (known.drafter, known.target, known.width)
    depth = TreeDepth(default_depth)
    if resources.uses_shipped_weights and made_for == (kind, resources.target.name, size.width):
        depth = parts.depth_that_pays(known, pays.now(), resources.warp.temperature, size.nodes)
    return parts.Dynamic(depth.levels, size.width, size.nodes, pays=pays, chosen=depth)


def limited_tree(size: TreeSize, resources: parts.MethodResources, per_node: int = 1) -> parts.Dynamic:
    """Return a tree builder of fixed depth and beam width; 0 nodes keeps as many as pay off in each round."""
    pays = None if size.nodes else tree_costs(resources, None, size.width, per_node)
    return parts.Dynamic(size.depth, size.width, size.nodes, pays=pays)


def eagle_heads(
    parameters: EagleTree, resources: parts.MethodResources, kind: str, profile: str, default_depth: int
) -> parts.Composition:
    """Compose EAGLE heads of this ``kind``, for text or a picture, with the tree and acceptance rule of ``parameters``."""
    network, acceptance = resources.drafter_weights(kind), acceptance_of(parameters.rule)
    drawn = parameters.rule == "without_replacement"
    builder = dynamic_tree(parameters, resources, network, kind, profile, default_depth, drawn)
    if resources.picture is None:
        drafter = parts.feature_drafter(network, resources.guidance)
        return parts.single_drafter(drafter, builder, acceptance, network.config.taps, kind)
    rows: Any = parts.with_picture(network, resources.picture)
    return parts.single_drafter(rows, builder, acceptance, rows.reads, f"{kind} with visual rows")
