"""STree (Wu et al. 2505.14969): verification of a draft tree in one pass of a state-space or hybrid target.

Without a draft model that scores trees, EAGLE-3's heads draft: those of SmolLM2 read the states of its hybrid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.errors import BadInput, ModelUnavailable
from specviz.methods.eagle2 import tree_costs
from specviz.methods.registry import TOKEN_EXACT, Card, TextResources, choice, number, parts


@dataclass(frozen=True)
class Parameters:
    """The published demo drafts four levels with three beams."""

    depth: int = number(4, 1, 16, "Depth of the tree; each level takes one drafter pass. The published demo uses 4.", "levels")
    width: int = number(
        3, 1, 8, "Beam width, and children tried below each beam node; 1 drafts a chain. The published demo uses 3.", "nodes"
    )
    nodes: int = number(12, 0, 96, "Nodes of the tree; 0 (beam only) chooses the fastest number in every round.", "nodes")
    temperature_floor: float = number(
        0.33, 0.0, 1.0, "Beams are ranked at the run's temperature, but at least at this one. With 0, always at temperature 1.",
        "temperature", step=0.01,
    )  # fmt: skip
    tree: str = choice(
        "beam",
        ("beam", "fixed", "drawn"),
        "A tree of the drafter's beams, a fixed shape with the most likely tokens, or a fixed shape with sampled tokens.",
    )
    rule: str = choice(
        "match",
        ("match", "ratio"),
        "Sample-and-match (same text as the autoregressive run), or, for drawn trees only, rejection sampling.",
    )


@Card(
    name="stree",
    exactness=TOKEN_EXACT.except_with("rule", "ratio"),
    family="model",
    parameters=Parameters,
    weights=("hybrid", "hybrid_draft", "smollm2_hybrid", "eagle3"),
    targets=("hybrid-small", "smollm2-hybrid", "bamba-9b", "mamba-codestral-7b", "qwen3.5-0.8b", "qwen3.5-2b"),
    needs_draft=True,
)
def compose(parameters: Parameters, resources: TextResources) -> parts.Composition:
    from specviz.methods.stree.drafter import TreeModelDrafter
    from specviz.targets.hybrid import HybridTarget

    if not isinstance(resources.target, HybridTarget):
        raise ModelUnavailable(
            f"STree needs a target with recurrent layers, but {resources.target.name} has only attention layers: choose "
            "the target hybrid-small or smollm2-hybrid, or another method."
        )
    draft, taps = None if resources.draft_name == "eagle3" else resources.draft_model(), tuple[int, ...]()
    model, name, warnings = (draft.target, draft.name, draft.warnings) if draft else (None, "", ())
    if name and model is None and resources.draft_name:
        raise ModelUnavailable(f"{name} can only extend a chain, so it cannot draft trees: choose another draft model.")
    if parameters.rule == "ratio" and parameters.tree != "drawn":
        raise BadInput("The rule ratio needs sampled tokens: set tree=drawn or rule=match.")
    depth, width, nodes = parameters.depth, parameters.width, parameters.nodes
    if parameters.tree != "beam" and not nodes:
        raise BadInput("Only tree=beam supports 0 nodes: choose 1 to 96 nodes for tree=fixed and tree=drawn.")
    size: Any = nodes
    drafter: Any
    if model is None:
        network, name = resources.drafter_weights("eagle3"), "eagle3"
        drafter, taps = parts.FeatureDrafter(network), network.config.taps
        size = nodes or tree_costs(resources, network, width)
    else:
        drafter = TreeModelDrafter(model, resources.target.vocab_size)
        if not nodes:  # the drafter's pass at each level covers the whole tree so far
            own, curve = resources.cost_curve_of(model), resources.cost_curve
            ratio = sum(own.at(1 + level * width) for level in range(depth)) / depth / curve().at(1)
            size = parts.CurrentCosts(curve, lambda: ratio * curve().at(1), resources.target.tier)
    builder: parts.TreeBuilder[Any] = (
        parts.Dynamic(depth, width, size, temperature_floor=parameters.temperature_floor)
        if parameters.tree == "beam"
        else parts.Sampled(parts.best_ranks(depth, width, nodes), ranked=parameters.tree == "fixed")
    )
    acceptance = parts.Rejection() if parameters.rule == "ratio" else parts.Match()
    return parts.single_drafter(drafter, builder, acceptance, taps, name, warnings)
