"""Builds dynamic trees for feature drafters from a method's parameters: depth and size optimised for this machine, or fixed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specviz.methods.parameters import choice, number
from specviz.trace.notes.drafts import TreeDepth

if TYPE_CHECKING:
    from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
    from specviz.drafting.trees.dynamic import CurrentCosts, Dynamic
    from specviz.engine.interfaces import Acceptance, Composition, TreeBuilder
    from specviz.methods.resources import MethodResources

WIDTH = number(6, 1, 16, "Nodes in the beam, and children each of them offers; the paper's value is 10.", "nodes")
NODES = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay off in each round, the paper's value is 59.", "nodes")
RULE = choice(
    "without_replacement",
    ("without_replacement", "match", "rejection"),
    "When sampling: tokens drawn from the drafter's distribution, as many below each node as are worth it, and rejection "
    "without replacement; or its likeliest tokens with sample-and-match (equal to the autoregressive run token for token) "
    "or with rejection of point masses, as published.",
)


def tree_depth(default: int, paper: int) -> Any:
    """Return the parameter of a tree's depth; 0 takes it from the drafter's calibration if there is one, otherwise
    ``default``."""
    return number(
        0, 0, 12,
        "Depth of the tree; each level takes one drafter pass. 0 chooses the fastest depth on this machine, at least 2, if "
        f"the drafter was calibrated for this target and width; otherwise {default}. Drawn tokens go as deep as pays off in each "
        f"round, {default} levels at most. The paper's value is {paper}.",
        "levels",
    )  # fmt: skip


@dataclass(frozen=True)
class EagleTree:
    """Tree parameters and acceptance rule of EAGLE-2 and its successors."""

    depth: int = tree_depth(4, 6)
    width: int = WIDTH
    nodes: int = NODES
    rule: str = RULE


def acceptance_of(rule: str) -> Acceptance:
    """Return sample-and-match for the ``rule`` "match", else rejection sampling."""
    from specviz.acceptance.match import Match
    from specviz.acceptance.rejection import Rejection

    return Match() if rule == "match" else Rejection()


class TreeParameters(Protocol):
    """Tree parameters of a method; 0 optimises depth or nodes for this machine."""

    @property
    def depth(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def nodes(self) -> int: ...


def tree_costs(resources: MethodResources, network: Any, rows: int, per_node: int = 1) -> CurrentCosts:
    """Return a tree-size policy based on the current cost of a target pass and of a forward of ``network`` over ``rows``.

    A node takes ``per_node`` rows of a pass. With ``network`` None, no forward is timed before the first run.
    """
    from specviz.drafting.trees.dynamic import CurrentCosts

    costs = CurrentCosts(resources.cost_curve, lambda: resources.forward_cost(network, rows), resources.target.tier, per_node)
    costs.now()  # measures missing costs before the run, not during its first step
    return costs


def dynamic_tree(
    parameters: TreeParameters, resources: MethodResources, network: Any, kind: str, profile: str, default_depth: int,
    drawn: bool = False,
) -> TreeBuilder[FeatureDrafter[Any]]:  # fmt: skip
    """Return the tree builder for ``network``, drafter heads of this ``kind``.

    A depth of 0 is chosen from the measured ``profile`` if that was made with these heads and width on this target, else it is
    ``default_depth``. With ``drawn``, a sampling target gets a tree of sampled tokens, sized in each round.
    """
    from specviz.drafting.trees.depth_profile import DepthProfile, depth_that_pays
    from specviz.drafting.trees.dynamic import Dynamic
    from specviz.drafting.trees.sampled_dynamic import SampledDynamicTree

    if drawn and not resources.warp.greedy:
        pays = None if parameters.nodes else tree_costs(resources, network, 1 if resources.guidance is None else 2)
        return SampledDynamicTree(parameters.depth or default_depth, parameters.width, parameters.nodes, pays)
    if parameters.depth and parameters.nodes:
        return Dynamic(parameters.depth, parameters.width, parameters.nodes)
    # Guidance adds an unconditional row per node.
    pays = tree_costs(resources, network, parameters.width * (1 if resources.guidance is None else 2))
    if parameters.depth:
        return Dynamic(parameters.depth, parameters.width, pays=pays)
    known = DepthProfile.load(resources.tree_file(profile))
    made_for = (known.drafter, known.target)
    if known.width != parameters.width or not resources.uses_shipped_weights or made_for != (kind, resources.target.name):
        return Dynamic(default_depth, parameters.width, parameters.nodes, pays=pays, chosen=TreeDepth(default_depth))
    best = depth_that_pays(known, pays.now(), resources.warp.temperature, parameters.nodes)
    return Dynamic(best.levels, parameters.width, parameters.nodes, pays=pays, chosen=TreeDepth(**asdict(best)))


def limited_tree(parameters: TreeParameters, resources: MethodResources, per_node: int = 1) -> Dynamic:
    """Return a tree builder of fixed depth and beam width; 0 nodes keeps as many as pay off in each round."""
    from specviz.drafting.trees.dynamic import Dynamic

    pays = None if parameters.nodes else tree_costs(resources, None, parameters.width, per_node)
    return Dynamic(parameters.depth, parameters.width, parameters.nodes, pays=pays)


def eagle_heads(parameters: EagleTree, resources: MethodResources, kind: str, profile: str, default_depth: int) -> Composition:
    """Compose EAGLE heads of this ``kind``, for text or a picture, with the tree and acceptance rule of ``parameters``."""
    from specviz.drafting.runtimes.compressed_picture import with_picture
    from specviz.drafting.runtimes.guided_drafter import feature_drafter
    from specviz.engine.controller import single_drafter

    network, acceptance = resources.drafter_weights(kind), acceptance_of(parameters.rule)
    builder = dynamic_tree(
        parameters, resources, network, kind, profile, default_depth, drawn=parameters.rule == "without_replacement"
    )
    if resources.picture is None:
        drafter = feature_drafter(network, resources.guidance)
        return single_drafter(drafter, builder, acceptance, network.config.taps, kind)
    rows: Any = with_picture(network, resources.picture)
    return single_drafter(rows, builder, acceptance, rows.reads, f"{kind} with visual rows")
