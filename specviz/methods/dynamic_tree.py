"""Dynamic trees of feature drafters from parameters: as deep and as large as pays on this machine, or as was asked."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from specviz.methods.parameters import choice, number
from specviz.trace.notes.drafts import TreeDepth

if TYPE_CHECKING:
    from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
    from specviz.drafting.trees.dynamic import CurrentCosts
    from specviz.engine.interfaces import TreeBuilder
    from specviz.methods.resources import MethodResources

# Parameters of several methods.
WIDTH = number(6, 1, 16, "Nodes in the beam, and children each of them offers; the paper's value is 10.", "nodes")
NODES = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay in each round, the paper's value is 59.", "nodes")
RULE = choice(
    "without_replacement",
    ("without_replacement", "match", "rejection"),
    "When sampling: tokens drawn from the drafter's distribution, as many below each node as are worth it, and rejection "
    "without replacement; or its likeliest tokens with sample-and-match (equal to the autoregressive run token for token) "
    "or with rejection of point masses, as published.",
)


class TreeParameters(Protocol):
    """What a method's parameters say of its tree; 0 leaves depth or nodes to what pays."""

    @property
    def depth(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def nodes(self) -> int: ...


def paying(parts: MethodResources, network: Any, rows: int, per_node: int = 1) -> CurrentCosts:
    """Who weighs nodes and levels by what a target pass, and a forward of ``network`` over ``rows``, cost at the moment. A node
    takes ``per_node`` rows of a pass; ``network`` is None where none is timed before its first run."""
    from specviz.drafting.trees.dynamic import CurrentCosts

    costs = CurrentCosts(parts.cost_curve, lambda: parts.forward_cost(network, rows), parts.target.tier, per_node)
    costs.now()  # what has to be timed first is timed before the run, not in its first step
    return costs


def dynamic_tree(
    parameters: TreeParameters, parts: MethodResources, network: Any, kind: str, profile: str, usual: int, drawn: bool = False
) -> TreeBuilder[FeatureDrafter[Any]]:
    """The tree that ``network``, heads of this ``kind``, drafts. A depth of 0 is chosen by the measured ``profile`` where
    one was made with these heads and this width on this target, and is ``usual`` for others. With ``drawn`` a sampling target
    gets a tree of drawn tokens, which weighs levels and nodes anew in each round.
    """
    from specviz.drafting.trees.depth_profile import DepthProfile, depth_that_pays
    from specviz.drafting.trees.drawn import Drawn
    from specviz.drafting.trees.dynamic import Dynamic

    if drawn and not parts.warp.greedy:
        pays = None if parameters.nodes else paying(parts, network, 1 if parts.guidance is None else 2)
        return Drawn(parameters.depth or usual, parameters.width, parameters.nodes, pays)
    if parameters.depth and parameters.nodes:
        return Dynamic(parameters.depth, parameters.width, parameters.nodes)
    pays = paying(parts, network, parameters.width * (1 if parts.guidance is None else 2))  # a guided row beside each
    if parameters.depth:
        return Dynamic(parameters.depth, parameters.width, pays=pays)
    known = DepthProfile.load(parts.tree_file(profile))
    made_for = (known.drafter, known.target)
    if known.width != parameters.width or not parts.uses_shipped_weights or made_for != (kind, parts.target.name):
        return Dynamic(usual, parameters.width, parameters.nodes, pays=pays, chosen=TreeDepth(usual))
    best = depth_that_pays(known, pays.now(), parts.warp.temperature, parameters.nodes)
    return Dynamic(best.levels, parameters.width, parameters.nodes, pays=pays, chosen=TreeDepth(**asdict(best)))
