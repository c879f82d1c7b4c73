"""LANTERN (Jang et al. 2410.03355) and LANTERN++ (Park et al. 2502.06352): a picture code verified together with its nearest
latent codes.

LANTERN drafts EAGLE-2's tree and bounds the mass that a code gains. LANTERN++ drafts a static tree and bounds a code's total mass
as a multiple of its own probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.methods.dynamic_tree import TreeSize, dynamic_tree, tree_costs
from specviz.methods.registry import RELAXED, Card, choice, number, parts

TREES = {"57": "lantern_57", "25": "eagle", "12": "lantern_12", "chain": "chain"}
"""Published tree by option. Children are sampled without replacement: earlier siblings have more descendants."""
ACCEPTED = {"57": 2.72, "25": 2.39, "12": 2.19, "chain": 1.88}
"""Mean codes per target pass (τ) of each tree: ``bench --suite image-sweeps``, emoji-64, λ = 5, 10 nearest latent codes, 64
prompts. The value for 57 is scaled from 24 of these prompts, on which it has 1.060 times the τ of LANTERN's 57 nodes (2.57 on all
64)."""
RESIDUAL = choice(
    "exact",
    ("exact", "aggregated", "repository"),
    "Residual after a rejection: the exact rule's (bound proven), the aggregated rule's, or the published code's.",
)


@dataclass(frozen=True)
class LanternParameters:
    """The paper's k for a codebook of 16,384 is 1000; a smaller codebook has fewer close neighbours."""

    delta: float = number(
        0.1, 0.0, 1.0, "δ: most mass a code may take over from its nearest latent codes; 0 is the exact rule.", step=0.01
    )
    k: int = number(100, 0, 1024, "Nearest latent codes that are considered, nearest first.", "codes")
    depth: int = number(4, 1, 12, "Depth of the tree; each level takes one drafter pass.", "levels")
    width: int = number(10, 1, 16, "Nodes in the beam, and children tried below each.", "nodes")
    nodes: int = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay off in each round, the paper's value is 58.", "nodes")
    residual: str = RESIDUAL


@Card(
    name="lantern",
    modality=("image",),
    exactness=RELAXED,
    family="judge",
    parameters=LanternParameters,
    weights=("image_drafter",),
)
def lantern(parameters: LanternParameters, resources: parts.ImageResources) -> parts.Composition:
    network = resources.drafter_weights("eagle")
    size = TreeSize(parameters.depth, parameters.width, parameters.nodes)
    builder = dynamic_tree(size, resources, network, "eagle", "eagle2", default_depth=4)
    return _relaxed(parameters, resources, network, builder, parts.Limit(delta=parameters.delta))


@dataclass(frozen=True)
class LanternPpParameters:
    """The paper's pairs (k, λ) are (10, 5), (5, 10) and (5, 20); the first is the default."""

    factor: float = number(
        5.0,
        1.0,
        40.0,
        "λ: a code may count for at most this many times its own probability; 1 is the exact rule.",
        step=0.1,
    )
    k: int = number(10, 0, 1024, "Nearest latent codes that are considered, nearest first.", "codes")
    tree: str = choice(
        "fitted",
        ("fitted", *TREES),
        "Drafted nodes: the authors' 57, EAGLE's 25, 12, a chain of 5, or the fastest of these on this machine.",
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
def lantern_pp(parameters: LanternPpParameters, resources: parts.ImageResources) -> parts.Composition:
    network = resources.drafter_weights("eagle")
    builder = parts.Sampled(static_tree(parameters.tree, resources, network))
    return _relaxed(parameters, resources, network, builder, parts.Limit(factor=parameters.factor))


def _relaxed(
    parameters: LanternParameters | LanternPpParameters, resources: parts.ImageResources, network: Any,
    builder: parts.TreeBuilder[Any], limit: parts.Limit,
) -> parts.Composition:  # fmt: skip
    rule = parts.Relaxed(resources.neighbours(), limit, parameters.k, parameters.residual)
    drafter = parts.feature_drafter(network, resources.guidance)
    return parts.single_drafter(drafter, builder, rule, network.config.taps, resources.draft_name or "image_drafter")


def static_tree(name: str, resources: parts.MethodResources, network: Any) -> parts.TreeShape:
    """Return the tree ``name``, or for "fitted" the one with the most codes per unit of time: its τ over the cost of its target
    pass and of one forward of ``network`` per level on this machine."""
    shapes = {key: parts.published_tree(tree) for key, tree in TREES.items()}
    if name == "fitted":
        pays = tree_costs(resources, network, 8 if resources.guidance is None else 16).now()  # about a level of the 25-node tree
        costs = {key: pays.cost[len(shape) - 1] + (len(shape.levels) - 1) * pays.forward for key, shape in shapes.items()}
        name = max(shapes, key=lambda key: ACCEPTED[key] / float(costs[key]))
    return shapes[name]
