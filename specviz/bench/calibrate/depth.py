"""Calibration of dynamic trees: the acceptance of each depth and size.

The target decodes autoregressively, and a tree is grown to full depth at every position. The full tree contains every shallower
and smaller one: the beams are equal, and a shallower tree's best nodes are among the deeper tree's candidates.
One text therefore shows the accepted path for each depth and size at each position. Verification by matching reproduces that
text, so replaying it round by round gives the tokens per round at each depth and size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from specviz.acceptance.exact import Match
from specviz.drafting.trees.depth_profile import DepthProfile
from specviz.drafting.trees.dynamic import MIN_CONFIDENCE_TEMPERATURE, Dynamic
from specviz.drafting.trees.retrieved import RootOnly
from specviz.engine.interfaces import Context, Draft, SingleDrafter
from specviz.methods.registry import TREES
from specviz.pipeline.request import Request
from specviz.pipeline.runner import prepare
from specviz.prompts import prompts

CALIBRATION = prompts("calibration")

DEEPEST, WIDTH, EVERY = 8, 6, 10_000
SIZES = (1, 2, 4, 8, 16, 32, 64)
TEMPERATURES = (0.0, 1.0)
DRAFTERS = {"eagle2": "eagle", "eagle3": "eagle3", "gto": "gto"}


@dataclass(frozen=True)
class GrownPosition:
    """Position in a text where a tree was grown.

    ``ranks[d - 1][j]`` is the rank of the text's token at depth ``j + 1`` among the nodes up to depth ``d``. ``ranks[d - 1]``
    ends at the first depth where the tree lacks the text's token.
    """

    ranks: tuple[tuple[int, ...], ...]

    def accepted_count(self, depth: int, nodes: int) -> int:
        """Return the number of nodes accepted from a tree with this depth and number of nodes."""
        return sum(rank < nodes for rank in self.ranks[depth - 1])


def compare_tree(tree: Draft, following: Sequence[int], deepest: int) -> GrownPosition:
    """Compare all candidates of ``tree`` with the tokens ``following`` the root."""
    tokens, parents, depths = tree.tree.host_tokens, tree.tree.shape.parents, tree.tree.shape.depths
    value, node, path = [0.0], 0, []
    for parent, probability in zip(parents[1:], tree.confidence[1:], strict=True):
        value.append(value[parent] + (math.log(probability) if probability else -math.inf))
    children = {(parent, tokens[child]): child for child, parent in enumerate(parents)}
    for token in following:
        if (node, token) not in children:
            break
        node = children[node, token]
        path.append(node)
    ranked = sorted(range(1, len(tokens)), key=value.__getitem__, reverse=True)
    ranks = []
    for depth in range(1, deepest + 1):
        within = {
            candidate: rank for rank, candidate in enumerate(candidate for candidate in ranked if depths[candidate] <= depth)
        }
        ranks.append(tuple(within[candidate] for candidate in path[:depth]))
    return GrownPosition(tuple(ranks))


class TreeCollector:
    """Builder that stores a grown tree at every position but drafts only the root, so the target decodes autoregressively."""

    def __init__(self, depth: int, width: int) -> None:
        # as for trees whose size a policy chooses
        self._builder = Dynamic(depth, width, EVERY, temperature_floor=MIN_CONFIDENCE_TEMPERATURE)
        self.trees: list[Draft] = []

    def build(self, drafter: Any, context: Context) -> Draft:
        self.trees.append(self._builder.build(drafter, replace(context, record_notes=False)))
        return RootOnly().build(drafter, context)


def positions_of(collector: TreeCollector, output: Sequence[int], deepest: int) -> list[GrownPosition]:
    """Return the positions of a text that at least ``deepest`` tokens follow."""
    known = range(len(output) - deepest)
    return [compare_tree(collector.trees[at], output[at : at + deepest], deepest) for at in known]


def tau(texts: Sequence[Sequence[GrownPosition]], depth: int, nodes: int) -> float:
    """Return tokens per round for trees of this depth and number of nodes; each round starts where the previous round ended."""
    rounds = tokens = 0
    for places in texts:
        at = 0
        while at < len(places):
            step = 1 + places[at].accepted_count(depth, nodes)
            rounds, tokens, at = rounds + 1, tokens + step, at + step
    return tokens / max(1, rounds)


def table(texts: Sequence[Sequence[GrownPosition]], deepest: int, sizes: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """Return τ [depth, size] for depths 1 to ``deepest``."""
    return tuple(tuple(tau(texts, depth, nodes) for nodes in sizes) for depth in range(1, deepest + 1))


def run(name: str, target: str, tokens: int = 48, report: Callable[[str], None] = print) -> Path:
    """Calibrate the trees of the method ``name`` on ``target``; write ``assets/trees/NAME.json`` and return the path."""
    tables, count = {}, 0
    for temperature in TEMPERATURES:
        texts = []
        for number, places in enumerate(_positions_by_prompt(name, target, tokens, temperature), start=1):
            texts.append(places)
            count += len(places)
            report(f"prompt {number} of {len(CALIBRATION)}, T = {temperature:g}: τ {tau(texts, DEEPEST, SIZES[-1]):.2f} at most")
        tables[temperature] = table(texts, DEEPEST, SIZES)
    source = f"{len(CALIBRATION)} prompts, {count} positions, {target}"
    out = TREES / f"{name}.json"
    DepthProfile(DRAFTERS[name], target, WIDTH, SIZES, tables, source).save(out)
    return out


def _positions_by_prompt(name: str, target: str, tokens: int, temperature: float) -> Iterator[list[GrownPosition]]:
    """Yield the positions of one greedy or sampled answer per prompt."""
    stated = {"depth": DEEPEST, "width": WIDTH, "nodes": SIZES[-1]}
    for prompt in CALIBRATION:
        ready = prepare(Request(name, prompt, target, max_new_tokens=tokens, temperature=temperature, parameters=stated))
        composition, collector = ready.compose(), TreeCollector(DEEPEST, WIDTH)
        controller: Any = composition.controller
        alone = replace(composition, controller=SingleDrafter(controller.drafter, collector), acceptance=Match())
        decoding = ready.decoding(alone, 0)
        for _ in decoding.steps():
            pass
        yield positions_of(collector, decoding.outcome.output_ids, DEEPEST)


RUNS: dict[str, Callable[..., Path]] = {name: partial(run, name) for name in DRAFTERS}
