"""The traversal suite: Traversal Verification against top-down rejection on the very same sampled trees.

For every tree of a run both rules' expected accepted lengths are computed over their uniform draws, for the tree as it is and cut
to each smaller depth (a sampled tree cut at a depth is a sampled tree). So the two differ by the rules alone.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from specviz.acceptance.residual import remaining
from specviz.bench.kit.measure import Bencher
from specviz.bench.kit.report import Report, Row
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.sampling import Noise
from specviz.engine.tree import DraftTree
from specviz.methods.traversal.verification import Traversal

SHAPES: Mapping[str, Mapping[str, object]] = {
    "chain": {"shape": "chain", "depth": 6},
    "binary": {"shape": "binary", "depth": 4},
    "sparse": {"shape": "sparse"},
}
ABOVE = 1.0 + 1e-6
"""The least that counts as more than one."""

Pair = tuple[float, float]
"""Expected accepted tokens of a tree: leaves first, and root first."""


class Tails(Noise):
    """Noise in which every uniform draw falls against acceptance, so that a walk from the leaves visits the whole tree."""

    def uniform(self, stream: int, *place: int) -> float:
        return 1.0


def leaves_first(draft: Draft, target: TargetPass, context: Context) -> float:
    """Expected accepted length under traversal. The weights a walk meets hang on its failures alone, so one walk in
    which all fail tells every outcome's probability."""
    depths = draft.tree.shape.depths
    verdict = Traversal().judge(draft, target, replace(context, noise=Tails(context.noise.seed), record_notes=False))
    expected, left = 0.0, 1.0
    for node, weight in verdict.thresholds.items():
        expected += left * weight * depths[node]
        left *= 1 - weight
    return expected


def root_first(draft: Draft, target: TargetPass, context: Context) -> float:
    """Expected accepted length under rejection from the root downwards: the probability to reach each node, summed."""
    tree, reached = draft.tree, {0: 1.0}
    for node, children in enumerate(tree.shape.children):
        if not children or not reached[node]:
            reached.update(dict.fromkeys(children, 0.0))
            continue
        tokens = [tree.host_tokens[child] for child in children]
        distribution = context.warp.probabilities(target.logits[node]).double()
        left, open_share = remaining(distribution / distribution.sum(), draft.proposals.get(node), tokens), reached[node]
        for child, token in zip(children, tokens, strict=True):
            accepted = left.threshold(token)
            reached[child] = open_share * accepted
            open_share *= 1 - accepted
            left.reject(token)
    return sum(reached.values()) - 1.0


def cut_at(draft: Draft, target: TargetPass, depth: int) -> tuple[Draft, TargetPass]:
    """The tree down to ``depth``, with the distributions its nodes' children were drawn from."""
    shape = draft.tree.shape
    nodes = [node for node, deep in enumerate(shape.depths) if deep <= depth]
    place = {node: at for at, node in enumerate(nodes)}
    parents = [-1 if node == 0 else place[shape.parents[node]] for node in nodes]
    tree = DraftTree.of([draft.tree.host_tokens[node] for node in nodes], parents)
    distributions = {place[node]: distribution for node, distribution in draft.proposals.items() if shape.depths[node] < depth}
    return Draft(tree, distributions), TargetPass(target.logits[nodes])


@dataclass
class BothRules:
    """Judges by traversal, and notes what both rules expect of each tree at each depth."""

    depth: int
    pairs: dict[int, list[Pair]] = field(default_factory=dict)

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        deepest = max(draft.tree.shape.depths)
        if deepest == self.depth:  # a tree that the context cut short would count as a shallow one
            for depth in range(1, deepest + 1):
                smaller = cut_at(draft, target, depth)
                pair = leaves_first(*smaller, context), root_first(*smaller, context)
                self.pairs.setdefault(depth, []).append(pair)
        return Traversal().judge(draft, target, context)


def compare(
    bench: Bencher, prompts: Mapping[str, Sequence[str]], parameters: Mapping[str, object], temperature: float = 1.0
) -> dict[int, list[Pair]]:
    """Both rules on every tree of runs over the prompts of each kind, by depth."""
    pairs_by_depth: dict[int, list[Pair]] = {}
    for text in [text for texts in prompts.values() for text in texts]:
        ready = bench.prepared("traversal", text, temperature, parameters=dict(parameters))
        composition = ready.compose()
        both = BothRules(int(parameters.get("depth", 5)))  # type: ignore[call-overload]
        for _ in ready.decoding(replace(composition, acceptance=both), 0, "off", threading.Event()).steps():
            pass
        for depth, pairs in both.pairs.items():
            pairs_by_depth.setdefault(depth, []).extend(pairs)
    return pairs_by_depth


def rows(shape: str, pairs_by_depth: Mapping[int, Sequence[Pair]], temperature: float) -> list[Row]:
    """A row a depth: mean accepted length over the other rule's; and whether the gain grows with depth.

    At depth 1 there is nothing below to judge by, and both rules are one. Below it a gain of nothing is none.
    """
    table_rows, gains = [], []
    for depth, pairs in sorted(pairs_by_depth.items()):
        ours, theirs = (statistics.mean(values) for values in zip(*pairs, strict=True))
        gains.append(round(ours / theirs, 9) if theirs else 1.0)
        differences = [our_length - their_length for our_length, their_length in pairs]
        error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
        detail = f"{ours:.4f} and {theirs:.4f} accepted, apart by {ours - theirs:.4f} ± {error:.4f}, {len(pairs)} trees"
        name = f"traversal over root-first, {shape}, depth {depth}, T = {temperature:g}"
        table_rows.append(Row(name, gains[-1], goal=1.0 if depth == 1 else ABOVE, detail=detail))
    if len(gains) > 1:
        rises = [after / before for before, after in pairwise(gains)]
        detail = ", ".join(f"{100 * (gain - 1):+.2f} %" for gain in gains)
        steps = f"least rise of the gain from one depth to the next, {shape}, T = {temperature:g}"
        table_rows.append(Row(steps, min(rises), goal=1.0, detail=detail))
        name = f"traversal's gain at the deepest over the first depth, {shape}, T = {temperature:g}"
        table_rows.append(Row(name, gains[-1] / gains[0], goal=ABOVE, detail=detail))
    return table_rows


def run(report: Report, bench: Bencher, prompts: Mapping[str, Sequence[str]], temperature: float = 1.0) -> None:
    """Every shape; part of the suite ``eagle``."""
    for shape, parameters in SHAPES.items():
        for row in rows(shape, compare(bench, prompts, parameters, temperature), temperature):
            report.add(row)
