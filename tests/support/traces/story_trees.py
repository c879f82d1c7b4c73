"""Trees that a simulated drafter grows for ``stories.py``: expanded and reranked, sampled, or in blocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

from specviz.trace.schema import Node
from tests.support.traces.sample_rounds import Words, rounded


@dataclass
class Leaf:
    """A drafted token on its way into a trace. ``right`` says that every token up to it is what the target wants."""

    parent: int
    text: str
    q: float
    p: float
    depth: int
    right: bool
    value: float
    block: int = 0


@dataclass
class Sketch:
    """A tree before its verdict, parents before children, the root first."""

    leaves: list[Leaf]
    beams: list[list[int]] = field(default_factory=list)
    considered: int = 0
    kept: int = 0

    def children(self, parent: int) -> list[int]:
        return [node for node, leaf in enumerate(self.leaves) if node and leaf.parent == parent and node < self.kept]

    def nodes(self, words: Words, statuses: Sequence[str], **more: dict[int, float]) -> tuple[Node, ...]:
        """The nodes of a step; ``more`` may hold thresholds and draws by node."""
        thresholds, draws = more.get("thresholds", {}), more.get("draws", {})
        return tuple(
            Node(
                leaf.parent, words.ids[leaf.text], leaf.text, rounded(leaf.q) if node else None,
                rounded(leaf.p) if status in ("accepted", "rejected") else None, status, thresholds.get(node),
                draws.get(node),
            )
            for node, (leaf, status) in enumerate(zip(self.leaves, statuses, strict=True))
        )  # fmt: skip


class Distributions:
    """What a simulated drafter says after a branch: the same question always gets the same answer."""

    def __init__(self, words: Words, seed: str, place: int) -> None:
        self.words, self.seed, self.place = words, seed, place

    def root(self) -> Leaf:
        return Leaf(-1, self.words.at(self.place - 1), 1.0, 1.0, 0, True, 0.0)

    def after(self, leaf: Leaf, number: int, width: int, parent: int, skew: float = 0.0) -> list[Leaf]:
        """``width`` children of ``leaf``, likeliest first. ``skew`` moves the drafter away from the target."""
        generator = random.Random(f"{self.seed} {number} {leaf.text} {leaf.depth}")
        sure = generator.choice((0.92, 0.75, 0.5, 0.3)) if leaf.right else generator.choice((0.7, 0.4, 0.2))
        share = [sure * (0.55**rank) * generator.uniform(0.6, 1.4) for rank in range(width)]
        total = sum(share) / min(0.98, sure + 0.05 * width)
        q = sorted((one / total for one in share), reverse=True)
        right = self.words.at(self.place + leaf.depth)
        texts = generator.sample([text for text in self.words.others if text != right], width)
        likely = ([8, 3, 2] + [1] * width)[: width + 1]
        rank = generator.choices(range(width + 1), likely)[0] if leaf.right else width
        if rank < width:
            texts = [right if place == rank else text for place, text in enumerate(texts)]
        made = []
        for place, (text, share_q) in enumerate(zip(texts, q, strict=True)):
            on = place == rank
            p = generator.uniform(0.5, 0.95) if on else share_q * generator.uniform(0.1, 0.7)
            share_q = min(0.999, share_q * exp(skew * generator.gauss(0, 1)))
            made.append(Leaf(parent, text, share_q, p, leaf.depth + 1, on, leaf.value + log(share_q)))
        return made


def dynamic(
    distributions: Distributions,
    depth: int,
    width: int,
    nodes: int,
    go: Callable[[int, float], bool],
    skew: float = 0.0,
    most: int = 96,
) -> Sketch:
    """Expand by beam, then keep the best ``nodes`` of all candidates, root included, and show ``most`` of the rest."""
    leaves, beams = [distributions.root()], [[0]]
    for level in range(depth):
        born: list[int] = []
        for parent in beams[-1]:
            leaves += distributions.after(leaves[parent], parent, width, parent, skew)
            born += range(len(leaves) - width, len(leaves))
        beams.append(sorted(born, key=lambda node: -leaves[node].value)[:width])
        if not go(level + 1, log(sum(exp(leaves[node].value) for node in beams[-1]))):
            break
    ranked = sorted(range(len(leaves)), key=lambda node: (-leaves[node].value, node))
    kept = sorted(ranked[:nodes])
    shown = sorted(node for node in ranked[nodes : nodes + most])
    return _renumbered(leaves, beams, kept, shown)


def _renumbered(leaves: list[Leaf], beams: list[list[int]], kept: list[int], shown: list[int]) -> Sketch:
    order = {node: place for place, node in enumerate([*kept, *shown])}
    moved = [Leaf(**{**vars(leaves[node]), "parent": order.get(leaves[node].parent, -1)}) for node in order]
    levels = [[order[node] for node in beam if node in order] for beam in beams]
    return Sketch(moved, levels, len(leaves) - 1, len(kept))


def sampled(distributions: Distributions, widths: Sequence[int]) -> Sketch:
    """A static tree: as many children at each node of a level as ``widths`` says."""
    leaves, level = [distributions.root()], [0]
    for width in widths:
        born: list[int] = []
        for parent in level:
            leaves += distributions.after(leaves[parent], parent, width, parent)
            born += range(len(leaves) - width, len(leaves))
        level = born
    return Sketch(leaves, kept=len(leaves))


def blocks(distributions: Distributions, forwards: int, width: int, fans: Sequence[int]) -> Sketch:
    """A tree that grows ``width`` levels with every drafter forward."""
    made = sampled(distributions, [fan for _ in range(forwards) for fan in fans[:width]])
    for leaf in made.leaves[1:]:
        leaf.block = (leaf.depth - 1) // width
    return made


def walk(sketch: Sketch) -> tuple[list[int], list[str]]:
    """The path that a greedy target keeps, and a status for every leaf."""
    path: list[int] = []
    statuses = ["skipped" if node < sketch.kept else "pruned" for node in range(len(sketch.leaves))]
    here: int | None = 0
    while here is not None:
        below = sketch.children(here)
        for node in below:
            statuses[node] = "rejected"
        here = next((node for node in below if sketch.leaves[node].right), None)
        if here is not None:
            path.append(here)
            statuses[here] = "accepted"
    statuses[0] = "root"
    return path, statuses


def post_order(sketch: Sketch, generator: random.Random) -> tuple[list[dict[str, Any]], list[int]]:
    """Leaf-to-root verdicts with weights and uniform draws, and the path that was kept."""
    visits: list[dict[str, Any]] = []

    def judge(node: int, weight: float) -> list[int] | None:
        start = rounded(weight)
        for child in sketch.children(node):
            leaf = sketch.leaves[child]
            found = judge(child, min(1.0, weight * leaf.p / leaf.q))
            if found is not None:
                if node:
                    visits.append({"node": node, "start": None, "weight": None, "draw": None, "outcome": "passed"})
                return [node, *found]
            weight = 1.0 if node == 0 else weight * 0.55
        draw = 0.0 if node == 0 else rounded(generator.random())
        kept = draw < weight
        outcome = "accepted" if kept else "failed"
        coin = draw if node else None
        visits.append({"node": node, "start": start, "weight": rounded(weight), "draw": coin, "outcome": outcome})
        return [node] if kept else None

    return visits, [node for node in judge(0, 1.0) or [] if node]
