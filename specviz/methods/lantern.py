"""LANTERN (Jang et al. 2410.03355) and LANTERN++ (Park et al. 2502.06352): relaxed acceptance of similar image codes.

The target's probability of a code is raised by that of its nearest latent codes. LANTERN drafts EAGLE-2's tree and bounds the
added probability. LANTERN++ drafts a static tree and limits the sum to a multiple of the code's own probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.methods.eagle2 import TreeSize, dynamic_tree, tree_costs
from specviz.methods.registry import RELAXED, Card, ImageResources, MethodResources, choice, number, parts, published_tree

TREES = {"57": "lantern_57", "25": "eagle", "12": "lantern_12", "chain": "chain"}
"""Published tree by option."""
ACCEPTED = {"57": 2.72, "25": 2.39, "12": 2.19, "chain": 1.88}
"""Codes per target pass (τ) of each tree in ``bench --suite image-sweeps``: emoji-64, λ = 5, k = 10, 64 prompts.

The 57-node tree was measured on 24 of the prompts, where its τ is 1.060 times LANTERN's. LANTERN's τ on all 64 is 2.57.
"""
RESIDUAL = choice(
    "exact",
    ("exact", "aggregated", "repository"),
    "Residual after a rejection: that of the exact rule (with a proven bound), of the aggregated rule, or of the published code. "
    "The first two differ only for codes drawn from the drafter's distribution.",
)


@dataclass(frozen=True)
class LanternParameters:
    """The paper uses k = 1000 for a codebook of 16,384 codes; a smaller codebook has fewer close neighbours."""

    delta: float = number(
        0.1, 0.0, 1.0, "δ: maximum probability that a code gains from its nearest latent codes; 0: exact.", step=0.01
    )
    k: int = number(100, 0, 1024, "Number of nearest latent codes.", "codes")
    depth: int = number(4, 1, 12, "Depth of the tree; each level takes one drafter pass.", "levels")
    width: int = number(10, 1, 16, "Beam width, and children tried below each beam node.", "nodes")
    nodes: int = number(0, 0, 128, "Nodes to verify; 0 chooses the fastest number in every round; the paper uses 58.", "nodes")
    residual: str = RESIDUAL


@Card(
    name="lantern",
    modality=("image",),
    exactness=RELAXED,
    family="judge",
    parameters=LanternParameters,
    weights=("image_drafter",),
)
def lantern(parameters: LanternParameters, resources: ImageResources) -> parts.Composition:
    network = resources.drafter_weights("eagle")
    size = TreeSize(parameters.depth, parameters.width, parameters.nodes)
    builder = dynamic_tree(size, resources, network, "eagle", "eagle2", default_depth=4)
    return _relaxed(parameters, resources, network, builder, parts.Limit(delta=parameters.delta))


@dataclass(frozen=True)
class LanternPpParameters:
    """The paper uses (k, λ) = (10, 5), (5, 10) and (5, 20); the first pair is the default."""

    factor: float = number(
        5.0,
        1.0,
        40.0,
        "λ: maximum factor on the probability of a code; 1: exact.",
        step=0.1,
    )
    k: int = number(10, 0, 1024, "Number of nearest latent codes.", "codes")
    tree: str = choice(
        "fitted",
        ("fitted", *TREES),
        "Tree: the fastest on this machine, the authors' 57 nodes, EAGLE's 25 nodes, 12 nodes, or a chain of 5.",
    )
    residual: str = RESIDUAL


@Card(
    name="lantern_pp",
    modality=("image",),
    exactness=RELAXED,
    family="judge",
    parameters=LanternPpParameters,
    weights=("image_drafter",),
)
def lantern_pp(parameters: LanternPpParameters, resources: ImageResources) -> parts.Composition:
    network = resources.drafter_weights("eagle")
    builder = parts.Sampled(static_tree(parameters.tree, resources, network))
    return _relaxed(parameters, resources, network, builder, parts.Limit(factor=parameters.factor))


def _relaxed(
    parameters: LanternParameters | LanternPpParameters, resources: ImageResources, network: Any,
    builder: parts.TreeBuilder[Any], limit: parts.Limit,
) -> parts.Composition:  # fmt: skip
    rule = parts.Relaxed(resources.neighbours(), limit, parameters.k, parameters.residual)
    drafter = parts.feature_drafter(network, resources.guidance)
    return parts.single_drafter(drafter, builder, rule, network.config.taps, resources.draft_name or "image_drafter")


def static_tree(name: str, resources: MethodResources, network: Any) -> parts.TreeShape:
    """Return the tree ``name`` of :data:`TREES`; for "fitted", the tree with the most codes per unit of time on this machine.

    The time is that of a target pass and of a forward of ``network`` per level.
    """
    shapes = {key: published_tree(tree) for key, tree in TREES.items()}
    if name == "fitted":
        policy = tree_costs(
            resources, network, 8 if resources.guidance is None else 16
        ).now()  # approximate number of rows of a level in the 25-node tree
        costs = {key: policy.cost[len(shape) - 1] + (len(shape.levels) - 1) * policy.forward for key, shape in shapes.items()}
        name = max(shapes, key=lambda key: ACCEPTED[key] / float(costs[key]))
    return shapes[name]
