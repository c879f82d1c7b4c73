"""Composition of block-filling drafters (DFlash, DSpark): chains cut where they stop paying off, and trees over one block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.methods.registry import choice, number, parts


@dataclass(frozen=True)
class FillParameters:
    """Shape of the draft and acceptance rule of a block drafter."""

    tree: str = choice(
        "chain",
        ("chain", "best_first", "dynamic"),
        "A chain, as published; the most probable paths of the block's marginals (DDTree), always with sample-and-match; or "
        "EAGLE-2's dynamic tree, whose levels cost no further drafter pass.",
    )
    block: int = number(0, 0, 32, "Tokens that one pass fills; 0 takes as many as the drafter was trained for.", "tokens")
    nodes: int = number(0, 0, 200, "Nodes sent to the target; 0 sends as many as pay off in each round.", "nodes")
    width: int = number(4, 1, 16, "Children of a node in a dynamic tree, and nodes in its beam.", "nodes")
    rule: str = choice(
        "rejection",
        ("rejection", "match"),
        "When sampling: tokens drawn from the drafter's distribution and rejection sampling; or its likeliest tokens with "
        "sample-and-match (equal to the autoregressive run token for token).",
    )


def block_drafter(
    parameters: FillParameters, resources: parts.MethodResources, kind: str, threshold: float = 0.0
) -> parts.Composition:  # fmt: skip
    """Compose a block drafter of this ``kind``; ``threshold`` cuts chains by their predicted acceptance rate."""
    network = resources.drafter_weights(kind)
    slots = parameters.block or network.config.slots
    chained = parameters.tree == "chain"
    drafter = parts.FillDrafter(network, min(slots, parameters.nodes or slots) if chained else slots)
    taps, match = drafter.taps, parameters.rule == "match"
    acceptance: Any = parts.Match() if match or parameters.tree == "best_first" else parts.Rejection()
    tier = resources.target.tier
    costs = parts.CurrentCosts(resources.cost_curve, lambda: resources.forward_cost(None, 1), tier, once=True)
    costs.now()  # measures missing costs before the run, not during its first step
    pays = None if parameters.nodes or (chained and threshold) else costs
    if chained:
        controller: Any = parts.BlockChain(drafter, threshold, pays, ranked=match)
        return parts.Composition(controller, acceptance, taps, kind)
    if parameters.tree == "best_first":
        return parts.Composition(parts.BestFirst(drafter, parameters.nodes, pays), acceptance, taps, kind)
    size = (drafter.slots, parameters.width, parameters.nodes)
    ranked = match or resources.warp.greedy
    builder: Any = parts.Dynamic(*size, pays=pays) if ranked else parts.SampledDynamicTree(*size, pays)
    return parts.single_drafter(drafter, builder, acceptance, taps, kind)
