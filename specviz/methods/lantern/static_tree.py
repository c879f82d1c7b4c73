"""LANTERN++'s static trees, and the choice of the fastest one on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specviz.methods.dynamic_tree import tree_costs
from specviz.methods.eagle import PUBLISHED

if TYPE_CHECKING:
    from specviz.engine.tree import TreeShape
    from specviz.methods.resources import MethodResources

# Nodes by depth: the 57 of LANTERN++'s authors (5 / 13 / 16 / 14 / 9; `naive_extend_57` in models/drafters/choices.py of
# jadohu/LANTERN), the 25 of EAGLE's (4 / 8 / 8 / 3 / 2), specviz's own 12, and a chain. By child counts, level by level, 0 for
# a leaf; earlier siblings, which were drawn first, have more descendants.
TREES = {
    "57": (
        (5,),
        (4, 3, 3, 2, 1),
        (4, 3, 3, 2, 2, 1, 0, 1),
        (4, 3, 2, 1, 2, 1, 0, 1),
        (3, 2, 0, 0, 2, 1, 0, 1),
    ),
    "25": PUBLISHED,
    "12": ((3,), (2, 1, 1), (1, 1, 1), (1, 1)),
    "chain": ((1,), (1,), (1,), (1,), (1,)),
}
ACCEPTED = {"57": 2.72, "25": 2.39, "12": 2.19, "chain": 1.88}
"""Codes per target pass of each tree: ``bench --suite image-sweeps``, emoji-64, λ = 5, 10 nearest latent codes, 64 prompts.
The value for 57 is scaled from 24 of these prompts, on which it has 1.060 times the τ of LANTERN's 57 (2.57 on all)."""


def static_tree(name: str, resources: MethodResources, network: Any) -> TreeShape:
    """Return the tree ``name``, or for "fitted" the one with most codes per millisecond: its measured acceptance over the time
    of its pass and of one forward of ``network`` per level on this machine."""
    from specviz.engine.tree import shape_from_counts

    if name == "fitted":
        pays = tree_costs(resources, network, 8 if resources.guidance is None else 16).now()  # about a level of the 25 nodes
        costs = {key: pays.cost[sum(map(sum, tree))] + len(tree) * pays.forward for key, tree in TREES.items()}
        name = max(TREES, key=lambda key: ACCEPTED[key] / float(costs[key]))
    return shape_from_counts(TREES[name])
