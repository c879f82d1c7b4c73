"""Best-first draft trees (DDTree): the most probable continuations under one distribution per depth.

DDTree (Ringel and Romano, arXiv 2604.12989) is for drafters that predict several tokens in one forward, each independently of the
others. A path's probability is the product of its tokens' probabilities, at most that of its parent. The n most probable paths
thus form a tree, which a heap finds in order. A smaller tree is a prefix of a larger one. Nothing is sampled: each node is a
point mass.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from specviz.drafting.trees.dynamic import MAX_NODES, MIN_CONFIDENCE_TEMPERATURE, MIN_LOG_PROBABILITY, SizePolicy, likeliest
from specviz.engine.interfaces import Context, Draft, Drafter, Round, TargetPass
from specviz.engine.tree import DraftTree
from specviz.trace.notes.drafts import FrontierNote, Offer
from specviz.trace.schema import Note

OFFERS = 6
"""Number of top tokens reported per depth."""
SPARE = 24
"""Number of pruned nodes reported: those that a larger tree would add first."""
WIDTH = 64
"""Number of tokens ranked per depth at first; more are ranked only if the tree uses the last of them."""
PRIOR = 4.0
"""Weight, in expected acceptances per depth, of the assumption that the drafter's probabilities are right."""


@dataclass(frozen=True)
class Depth:
    """Tokens of one depth with their log-probabilities, most probable first."""

    tokens: Sequence[int]
    log_q: Sequence[float]


class BlockMarginals(Drafter, Protocol):
    """Drafter that predicts several depths in one forward, each independently of the tokens above."""

    @property
    def support(self) -> Tensor | None:
        """Ids of the drafter's vocabulary, int64 [support], or None for the target's vocabulary."""

    def marginals(self, context: Context) -> Tensor | None:
        """Return raw logits [depth, support], depth 1 first, or None if the drafter cannot draft."""

    def calls(self) -> int:
        """Return the number of drafter forwards since the last call."""


def ranked(logits: Tensor, support: Tensor | None, width: int, temperature: float = 1.0) -> list[Depth]:
    """Return the top ``width`` tokens of each row of ``logits`` [depth, support], copied to the host at once."""
    log_q, ids = likeliest(logits, support, width, temperature)
    tokens, values = torch.stack((ids.double(), log_q)).tolist()  # ids are exact in float64
    return [Depth([int(token) for token in row], values[depth]) for depth, row in enumerate(tokens)]


@dataclass(frozen=True)
class Path:
    """Node below the root: parent (0 is the root), depth, rank among the tokens of its depth, and log probability of the path."""

    parent: int
    depth: int
    rank: int
    value: float


def best_paths(depths: Sequence[Depth], most: int, least: float = -math.inf) -> list[Path]:
    """Return the ``most`` most probable paths with a log value above ``least``, best first; node n is entry n - 1.

    Paths of equal value are ordered by their ranks from the root down.
    """
    paths: list[Path] = []
    heap: list[tuple[float, tuple[int, ...], int]] = []

    def push(ranks: tuple[int, ...], parent: int, above: float) -> None:
        log_q = depths[len(ranks) - 1].log_q
        if ranks[-1] < len(log_q) and above + log_q[ranks[-1]] > least:
            heapq.heappush(heap, (-(above + log_q[ranks[-1]]), ranks, parent))

    if depths:
        push((0,), 0, 0.0)
    while heap and len(paths) < most:
        negative, ranks, parent = heapq.heappop(heap)
        paths.append(Path(parent, len(ranks), ranks[-1], -negative))
        push((*ranks[:-1], ranks[-1] + 1), parent, paths[parent - 1].value if parent else 0.0)
        if len(ranks) < len(depths):
            push((*ranks, 0), len(paths), -negative)
    return paths


class BestFirst:
    """Controller that drafts the most probable paths of the drafter's block; ``size``: their number, or a policy that chooses it.

    Probabilities are taken at the run's temperature, but at least at ``MIN_CONFIDENCE_TEMPERATURE``. Deeper distributions ignore
    the tokens above, so products are too optimistic. The policy therefore receives products times the ratio of accepted to
    expected nodes at that depth so far.
    """

    def __init__(self, drafter: BlockMarginals, size: int | SizePolicy) -> None:
        self.drafter, self._size = drafter, size
        self._expected: list[float] = []
        self._accepted: list[int] = []
        self._drafted: list[Path] = []

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.drafter.begin(context, prefill)
        self._expected, self._accepted, self._drafted = [], [], []

    def draft(self, context: Context) -> Draft:
        room = context.max_depth - 1
        logits = self.drafter.marginals(context) if room > 0 else None
        depths, paths = ([], []) if logits is None else self._search(logits[:room], context.warp.temperature)
        # Ratio of accepted to expected nodes so far by depth: initially 1, at most 1, never rising with depth.
        ratios = [
            (accepted + PRIOR) / (expected + PRIOR) for expected, accepted in zip(self._expected, self._accepted, strict=True)
        ]
        reach = list(accumulate([1.0, *ratios, *[1.0] * (len(depths) - len(ratios))][: len(depths) + 1], min))[1:]
        size = self._size
        if not isinstance(size, int):
            size = size([math.exp(path.value) * reach[path.depth - 1] for path in paths], 1)
        self._drafted = paths[:size]
        left = paths[size : size + SPARE] if context.record_notes else []
        tokens = [depths[path.depth - 1].tokens[path.rank] for path in paths]
        shares = [math.exp(depths[path.depth - 1].log_q[path.rank]) for path in paths]
        parents = [-1, *(path.parent for path in self._drafted)]
        tree = DraftTree.of([context.ids[-1], *tokens[:size]], parents, context.device)
        pruned = [(path.parent, tokens[node], shares[node]) for node, path in enumerate(left, start=size)]
        notes = context.notes(lambda: [self._note(depths, reach, left, len(paths))] if depths else [])
        return Draft(tree, confidence=[None, *shares[:size]], calls=self.drafter.calls(), pruned=pruned, notes=notes)

    def _search(self, logits: Tensor, temperature: float) -> tuple[list[Depth], list[Path]]:
        """Return each depth's top tokens, and the best paths, more than the tree keeps."""
        most, least = (self._size + SPARE, -math.inf) if isinstance(self._size, int) else (MAX_NODES, MIN_LOG_PROBABILITY)
        width = WIDTH
        while True:
            depths = ranked(logits, self.drafter.support, width, max(MIN_CONFIDENCE_TEMPERATURE, temperature))
            paths = best_paths(depths, most, least)
            if width >= logits.shape[-1] or all(path.rank < width - 1 for path in paths):
                return depths, paths
            width *= 4

    def observe(self, finished: Round) -> None:
        self.drafter.observe(finished)
        deepest = max((path.depth for path in self._drafted), default=0)
        self._expected += [0.0] * (deepest - len(self._expected))
        self._accepted += [0] * (deepest - len(self._accepted))
        for path in self._drafted:
            self._expected[path.depth - 1] += math.exp(path.value)
        for node in finished.verdict.path:
            self._accepted[self._drafted[node - 1].depth - 1] += 1

    def close(self) -> None:
        self.drafter.close()

    def _note(self, depths: Sequence[Depth], reach: Sequence[float], left: Sequence[Path], considered: int) -> Note:
        offers = [Offer(depth.tokens[:OFFERS], [math.exp(log_q) for log_q in depth.log_q[:OFFERS]]) for depth in depths]
        values = [0.0, *(path.value for path in (*self._drafted, *left))]
        return FrontierNote(values, 1 + len(self._drafted), considered, reach, offers).to_note()
