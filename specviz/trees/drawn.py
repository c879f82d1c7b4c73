"""Dynamic trees of drawn tokens: as EAGLE-2's, a tree that follows the drafter's confidence, but of children that are drawn
from the drafter's distribution and judged by it, which a sampling target accepts far more often than the likeliest ones.

Speculative rejection sampling without replacement (SpecInfer, arXiv 2305.09781; EAGLE, arXiv 2401.15077) asks that what is
offered at a node was drawn whatever was drawn: so no child is ever pruned, and how many a node gets is settled before they
are drawn, from the drafter's distribution there and from what was drawn above it, never from its own children's tokens. A tree
therefore grows level by level and is not reranked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import torch

from specviz.engine.interfaces import Context, Draft, Pick, Proposal
from specviz.engine.tree import DraftTree
from specviz.trace.notes.drafts import GrowthNote
from specviz.trace.schema import Note
from specviz.trees.sampled import Growing, NodeNoise, Rows

if TYPE_CHECKING:
    from specviz.trees.dynamic import SpeedupMaximising

MOST = 64
"""Nodes of a tree whose size nobody stated."""
_UNSEEN = 0.3
"""The likeliest token's probability where the drafter was not asked yet."""


def gains(likeliest: float, width: int) -> list[float]:
    """Probability that the first, second, ... of ``width`` children drawn is the one accepted, where the drafter gives its
    likeliest token this probability.

    A straight line through what the heads of EAGLE and EAGLE-3 had at temperature 1 on sixty held-out answers, where both have
    the same: the first is accepted with 0.30 below a likeliest probability of 0.1 and with 0.94 above 0.9, the second, once the
    first was rejected, with 0.08 and 0.37. They decide how large trees get, not what is accepted.
    """
    shares, left = [], 1.0
    for rank in range(width):
        accepted = 0.26 + 0.66 * likeliest if rank == 0 else (0.09 + 0.33 * likeliest) * 0.62 ** (rank - 1)
        shares.append(left * accepted)
        left *= 1 - accepted
    return shares


def gain_of(probability: float) -> float:
    """Probability that a first child is accepted which the drafter gives this probability; measured as :func:`gains`."""
    return min(1.0, 0.22 + 0.72 * math.sqrt(probability))


class Drawn:
    """At most ``depth`` levels, each node's children drawn without replacement and at most ``width``; ``nodes`` in all, the root
    not counted, 0 leaves their number and the levels of every round to ``pays``."""

    def __init__(self, depth: int, width: int, nodes: int = 0, pays: SpeedupMaximising | None = None) -> None:
        if not nodes and pays is None:
            raise ValueError("a tree without a given size needs a size policy")
        self._depth, self._width, self._nodes, self._pays = depth, width, nodes, pays

    def build(self, drafter: Rows, context: Context) -> Draft:
        growing, reach, depths = Growing([context.ids[-1]]), [1.0], [0]
        noise = NodeNoise(context, 1 + (self._nodes or MOST))
        beams, limit = [[0]], min(self._depth, context.max_depth - 1)
        for level in range(1, limit + 1):
            beam = beams[-1]
            proposals = drafter.rows(context, growing.tokens, growing.parents, beam)
            offers = _offers(beam, proposals, [reach[node] for node in beam], self._width)
            kept = list(zip(reach[1:], depths[1:], strict=True))
            count, deeper = self._planned(kept, [value for value, _, _ in offers], level, limit)
            for place, node in enumerate(beam):
                values = [value for value, owner, _ in offers[:count] if owner == place]
                proposal = proposals[place]
                if not values or proposal is None:
                    continue
                fresh = growing.hang(node, _drawn(node, proposal, len(values), noise), greedy=False)
                # One that was drawn first is worth what its own probability says, known by now.
                first = reach[node] * gain_of(growing.confidence[fresh[0]] or 0.0)
                reach += [first, *values[1 : len(fresh)]]
                depths += [level] * len(fresh)
            below = [node for node in range(len(growing.tokens)) if depths[node] == level]
            if not deeper or not below:
                break
            beams.append(sorted(sorted(below, key=lambda node: -reach[node])[: self._width]))
        tree = DraftTree.of(growing.tokens, growing.parents, context.device)
        calls = drafter.calls()
        notes = context.notes(lambda: (_growth(beams, reach), *drafter.draft_notes(growing.picks)))
        return Draft(tree, growing.proposals, growing.confidence, calls, notes=notes)

    def _planned(
        self, kept: Sequence[tuple[float, int]], offers: Sequence[float], level: int, limit: int
    ) -> tuple[int, bool]:  # fmt: skip
        """How many of this level's ``offers``, best first, are to be drawn, and whether to go deeper.

        Offers, and what may be expected below each, compete for the places of a tree; ``kept`` are the probabilities that the
        nodes so far are reached, and their depths.
        """
        typical = gains(_UNSEEN, self._width)
        waiting: list[tuple[float, int, bool]] = []
        for value in offers:
            heappush(waiting, (-value, level, True))
        values, depths, own = [value for value, _ in kept], [depth for _, depth in kept], [False] * len(kept)
        while waiting and len(values) < (self._nodes or MOST):
            value, depth, offered = heappop(waiting)
            values.append(-value)
            depths.append(depth)
            own.append(offered)
            if depth < limit:
                for share in typical:
                    heappush(waiting, (value * share, depth + 1, False))
        size = len(values) if self._nodes or self._pays is None else self._pays.fixed(depths, values)
        chosen = own[len(kept) : size]
        return sum(chosen), len(chosen) > sum(chosen)


def _offers(
    beam: Sequence[int], proposals: Sequence[Proposal | None], reach: Sequence[float], width: int
) -> list[tuple[float, int, int]]:
    """What may be drawn below a beam: the probability that it is accepted, the place of its parent in ``beam``, its rank. Best
    first, and so every parent's in the order of drawing."""
    places = [place for place in range(len(beam)) if proposals[place] is not None]
    if not places:
        return []
    q = torch.stack([proposal.probability for proposal in proposals if proposal is not None])
    found = []
    for place, likeliest, support in zip(
        places, *torch.stack((q.amax(-1).double(), (q > 0).sum(-1).double())).tolist(), strict=True
    ):
        shares = gains(likeliest, min(width, int(support)))
        found += [(reach[place] * share, place, rank) for rank, share in enumerate(shares)]
    return sorted(found, key=lambda offer: (-offer[0], offer[1], offer[2]))


def _drawn(node: int, proposal: Proposal, count: int, noise: NodeNoise) -> Pick:
    """``count`` children without replacement, in draw order: the top of log q with Gumbel noise."""
    q = proposal.probability
    perturbed = q.double().log() + noise.at(node, q.numel(), q.device)
    return Pick(node, proposal, perturbed, perturbed.topk(count).indices, count)


def _growth(beams: Sequence[Sequence[int]], reach: Sequence[float]) -> Note:
    growth = GrowthNote(
        beams=[list(beam) for beam in beams],
        value=[math.log(value) for value in reach],
        kept=len(reach),
        considered=len(reach) - 1,
    )
    return growth.to_note()
