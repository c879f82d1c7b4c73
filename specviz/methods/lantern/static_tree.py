"""LANTERN++'s static trees, and the choice of the fastest one on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specviz.methods.dynamic_tree import tree_costs
from specviz.methods.resources import published_tree

if TYPE_CHECKING:
    from specviz.engine.tree import TreeShape
    from specviz.methods.resources import MethodResources

TREES = {"57": "lantern_57", "25": "eagle", "12": "lantern_12", "chain": "chain"}
"""Published tree by option. Children are sampled without replacement: earlier siblings have more descendants."""
ACCEPTED = {"57": 2.72, "25": 2.39, "12": 2.19, "chain": 1.88}
"""Mean codes per target pass (τ) of each tree: ``bench --suite image-sweeps``, emoji-64, λ = 5, 10 nearest latent codes, 64
prompts. The value for 57 is scaled from 24 of these prompts, on which it has 1.060 times the τ of LANTERN's 57 nodes (2.57 on all
64)."""


def static_tree(name: str, resources: MethodResources, network: Any) -> TreeShape:
    """Return the tree ``name``, or for "fitted" the one with the most codes per unit of time: its τ over the cost of its target
    pass and of one forward of ``network`` per level on this machine."""
    shapes = {key: published_tree(tree) for key, tree in TREES.items()}
    if name == "fitted":
        pays = tree_costs(resources, network, 8 if resources.guidance is None else 16).now()  # about a level of the 25-node tree
        costs = {key: pays.cost[len(shape) - 1] + (len(shape.levels) - 1) * pays.forward for key, shape in shapes.items()}
        name = max(shapes, key=lambda key: ACCEPTED[key] / float(costs[key]))
    return shapes[name]
