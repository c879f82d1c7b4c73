"""Composition of block drafters (DFlash, DSpark): chains cut to the fastest length, or trees over one block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.methods.eagle2 import tree_costs
from specviz.methods.registry import MethodResources, choice, number, parts


@dataclass(frozen=True)
class FillParameters:
    """Draft shape and acceptance rule of a block drafter."""

    tree: str = choice(
        "chain",
        ("chain", "best_first", "dynamic"),
        "A chain, as published; the most probable paths of the block (DDTree), always with sample-and-match; or EAGLE-2's "
        "dynamic tree, which needs no further drafter pass.",
    )
    block: int = number(
        0, 0, 32, "Tokens filled by one drafter pass; 0 or too many: the number that the drafter was trained for.", "tokens"
    )
    nodes: int = number(0, 0, 200, "Nodes to verify; 0 chooses the fastest number in every round.", "nodes")
    width: int = number(4, 1, 16, "Beam width of the dynamic tree, and children of each beam node.", "nodes")
    rule: str = choice(
        "rejection",
        ("rejection", "match"),
        "At temperatures above 0: sampled draft tokens with rejection sampling, or the drafter's most likely tokens with "
        "sample-and-match (same text as the autoregressive run).",
    )


def block_drafter(
    parameters: FillParameters, resources: MethodResources, kind: str, threshold: float = 0.0
) -> parts.Composition:  # fmt: skip
    """Compose a block drafter with weights of this ``kind``.

    ``threshold``: a chain ends before the first slot with a lower predicted acceptance rate; 0: chains end at the fastest length.
    """
    network = resources.drafter_weights(kind)
    slots = parameters.block or network.config.slots
    chained = parameters.tree == "chain"
    drafter = parts.FillDrafter(network, min(slots, parameters.nodes or slots) if chained else slots)
    taps, match = drafter.taps, parameters.rule == "match"
    acceptance: Any = parts.Match() if match or parameters.tree == "best_first" else parts.Rejection()
    costs = tree_costs(resources, None, 1, once=True)
    if chained:
        policy = None if parameters.nodes or threshold else costs
        controller: Any = parts.BlockChain(drafter, threshold, policy, ranked=match)
        return parts.Composition(controller, acceptance, taps, kind)
    if parameters.tree == "best_first":
        return parts.Composition(parts.BestFirst(drafter, parameters.nodes or costs), acceptance, taps, kind)
    build: Any = parts.Dynamic if match or resources.warp.greedy else parts.SampledDynamicTree
    builder = build(drafter.slots, parameters.width, parameters.nodes or costs)
    return parts.single_drafter(drafter, builder, acceptance, taps, kind)
