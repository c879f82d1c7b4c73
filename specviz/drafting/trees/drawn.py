"""Dynamic trees of drawn tokens: grown by the drafter's confidence as EAGLE-2's, with children from its distribution.

They are judged by that distribution, and a sampling target accepts them far more often than the likeliest tokens. Rejection
sampling without replacement (SpecInfer, arXiv 2305.09781; EAGLE, arXiv 2401.15077) requires that the choice to offer a child does
not depend on which token was drawn. No child is ever pruned, therefore, and a node's number of children is settled before they
are drawn, from the drafter's distribution there and the tokens above it. A tree grows level by level and is not reranked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.drafting.trees.drawn_on_device import DrawnOnDevice
from specviz.drafting.trees.gains import UNSEEN, gain_of, gains
from specviz.drafting.trees.sampled import Growing, Levelled, NodeNoise, Rows
from specviz.engine.interfaces import Context, Draft, Pick, Proposal
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.trace.notes.drafts import GrowthNote
from specviz.trace.schema import Note

if TYPE_CHECKING:
    from specviz.drafting.trees.dynamic import CurrentCosts, SpeedupMaximising

MOST = 64
"""Nodes of a tree whose size nobody stated."""


class Drawn:
    """At most ``depth`` levels, each node's children drawn without replacement and at most ``width``; ``nodes`` in all, the root
    not counted, 0 leaves their number and the levels of every round to ``pays``."""

    def __init__(self, depth: int, width: int, nodes: int = 0, pays: SpeedupMaximising | CurrentCosts | None = None) -> None:
        if not nodes and pays is None:
            raise ValueError("a tree without a given size needs a size policy")
        self._depth, self._width, self._nodes, self._pays = depth, width, nodes, None if nodes else pays
        self._on_device = DrawnOnDevice(depth, width, nodes or MOST)

    def build(self, drafter: Rows, context: Context) -> Draft:
        own = getattr(drafter, "levels", None)
        pays = None if self._pays is None else self._pays.now()  # of one mind throughout a round
        if own is not None and context.device.type != "cpu":
            # A level more costs an accelerator less than the host's asking whether it is wanted.
            support = cast("Levelled", drafter).support
            return _draft(drafter, context, *self._on_device.grow(own(context), support, context, pays))
        return self._asked(drafter, context, pays)

    def _asked(self, drafter: Rows, context: Context, pays: SpeedupMaximising | None) -> Draft:
        """The host knows each level before the next one is drafted."""
        growing, reach, depths = Growing([context.ids[-1]]), [1.0], [0]
        noise = NodeNoise(context, 1 + (self._nodes or MOST))
        beams, limit = [[0]], min(self._depth, context.max_depth - 1)
        ask = _Asking(drafter, context, self._width) if limit > 0 else None
        for level in range(1, limit + 1):
            beam = beams[-1]
            assert ask is not None
            drawn, host_facts = self._drawn(ask(growing, beam), beam, noise)
            offers = _offers(host_facts, [reach[node] for node in beam], self._width)
            kept = list(zip(reach[1:], depths[1:], strict=True))
            count, deeper = self._planned(kept, [value for value, _, _ in offers], level, limit, pays)
            for place, node in enumerate(beam):
                values = [value for value, owner, _ in offers[:count] if owner == place]
                if not values:
                    continue
                proposal, perturbed, order = drawn[place]
                tokens, shares, _, _ = host_facts[place]
                pick = Pick(node, proposal, perturbed, order, len(values))
                fresh = growing.add(node, pick, tokens[: len(values)], shares[: len(values)], greedy=False)
                # One that was drawn first is worth what its own probability says, known by now.
                first = reach[node] * gain_of(growing.confidence[fresh[0]] or 0.0)
                reach += [first, *values[1 : len(fresh)]]
                depths += [level] * len(fresh)
            below = [node for node in range(len(growing.tokens)) if depths[node] == level]
            if not deeper or not below:
                break
            beams.append(sorted(sorted(below, key=lambda node: -reach[node])[: self._width]))
        return _draft(drafter, context, growing, beams, reach)

    def _drawn(
        self, proposals: Sequence[Proposal | None], beam: Sequence[int], noise: NodeNoise
    ) -> tuple[dict[int, tuple[Proposal, Tensor, Tensor]], dict[int, _HostFacts]]:  # fmt: skip
        """As many children as a node may get, drawn from each proposal of a beam without replacement, in draw order: the top of
        log q with Gumbel noise. How many of them it gets is not known yet, and does not depend on which they are. By place in the
        beam: proposal, perturbed log-probabilities and order; and what the host has to know, in one copy.
        """
        places = [place for place, proposal in enumerate(proposals) if proposal is not None]
        if not places:
            return {}, {}
        given = [proposal for proposal in proposals if proposal is not None]
        q = torch.stack([proposal.probability for proposal in given])
        perturbed, order = _drawn(q, [beam[place] for place in places], min(self._width, q.shape[1]), noise)
        if all(proposal.ids is given[0].ids for proposal in given):
            tokens = order if given[0].ids is None else given[0].ids[order]
        else:
            chosen = zip(given, order, strict=True)
            tokens = torch.stack([row if proposal.ids is None else proposal.ids[row] for proposal, row in chosen])
        sure = torch.stack((q.amax(1).double(), (q > 0).sum(1).double()), dim=1)
        count = order.shape[1]
        rows = torch.cat((tokens.double(), q.gather(1, order).double(), sure), dim=1).tolist()  # ids are exact in a double
        drawn = dict(zip(places, zip(given, perturbed.unbind(), order.unbind(), strict=True), strict=True))
        host_facts = {
            place: ([int(token) for token in row[:count]], row[count : 2 * count], row[-2], int(row[-1]))
            for place, row in zip(places, rows, strict=True)
        }
        return drawn, host_facts

    def _planned(
        self, kept: Sequence[tuple[float, int]], offers: Sequence[float], level: int, limit: int, pays: SpeedupMaximising | None
    ) -> tuple[int, bool]:  # fmt: skip
        """How many of this level's ``offers``, best first, are to be drawn, and whether to go deeper.

        Offers, and what may be expected below each, compete for the places of a tree; ``kept`` are the probabilities that the
        nodes so far are reached, and their depths.
        """
        typical = gains(UNSEEN, self._width)
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
        size = len(values) if pays is None else pays.fixed(depths, values)
        chosen = own[len(kept) : size]
        return sum(chosen), len(chosen) > sum(chosen)


_HostFacts = tuple[list[int], list[float], float, int]
"""Of a node's drawn children the tokens and probabilities, in draw order; its likeliest token's probability, and its support."""


def _drawn(q: Tensor, nodes: Sequence[int], most: int, noise: NodeNoise) -> tuple[Tensor, Tensor]:
    """log q [node, support] with Gumbel noise, and the places of its ``most`` largest, which are draws in their order."""
    perturbed = q.double().log() + noise.each(nodes, q.shape[1], q.device)
    return perturbed, perturbed.topk(most).indices


class _Asking:
    """Asks for the distributions below the nodes of one level after the other: a drafter's own levels where it has them."""

    def __init__(self, drafter: Rows, context: Context, width: int) -> None:
        self._drafter, self._context, self._width = drafter, context, width
        own = getattr(drafter, "levels", None)
        self._own = own is not None
        self._levels: Levels | None = None if own is None else own(context)
        self._row_of = {0: 0}
        self._level = 0

    def __call__(self, growing: Growing, beam: Sequence[int]) -> Sequence[Proposal | None]:
        """For each node of ``beam`` the warped distribution of its children, None where there is none."""
        if not self._own:
            return self._drafter.rows(self._context, growing.tokens, growing.parents, beam)
        self._level += 1
        if self._levels is None or self._level > self._levels.deepest:
            return [None] * len(beam)
        support = cast("Levelled", self._drafter).support
        return [Proposal(row, support) for row in self._rows(self._levels, growing, beam).unbind()[: len(beam)]]

    @torch.inference_mode()
    def _rows(self, levels: Levels, growing: Growing, beam: Sequence[int]) -> Tensor:
        """The distributions [row, support] below the beam; on CUDA as many rows as it may ever have, so that shapes recur."""
        device = self._context.device
        if self._level == 1:
            return self._context.warp.log_probabilities(levels.ask()).exp()
        rows = [*beam, *([beam[-1]] * (self._width - len(beam) if device.type == "cuda" else 0))]
        both = to_device([[growing.tokens[node], self._row_of[growing.parents[node]]] for node in rows], device)
        tokens, parents = both.unbind(1)
        self._row_of = {node: row for row, node in enumerate(beam)}
        return self._context.warp.log_probabilities(levels.ask(tokens, parents)).exp()


def _offers(host_facts: Mapping[int, _HostFacts], reach: Sequence[float], width: int) -> list[tuple[float, int, int]]:
    """What may be drawn below a beam: the probability that it is accepted, the place of its parent in ``beam``, its rank. Best
    first, and so every parent's in the order of drawing."""
    found = []
    for place, (_, _, likeliest, support) in host_facts.items():
        shares = gains(likeliest, min(width, support))
        found += [(reach[place] * share, place, rank) for rank, share in enumerate(shares)]
    return sorted(found, key=lambda offer: (-offer[0], offer[1], offer[2]))


def _draft(drafter: Rows, context: Context, growing: Growing, beams: Sequence[Sequence[int]], reach: Sequence[float]) -> Draft:
    tree = DraftTree.of(growing.tokens, growing.parents, context.device)
    calls = drafter.calls()
    notes = context.notes(lambda: (_growth(beams, reach), *drafter.draft_notes(growing.picks)))
    return Draft(tree, growing.proposals, growing.confidence, calls, notes=notes)


def _growth(beams: Sequence[Sequence[int]], reach: Sequence[float]) -> Note:
    growth = GrowthNote(
        beams=[list(beam) for beam in beams],
        value=[math.log(value) for value in reach],
        kept=len(reach),
        considered=len(reach) - 1,
    )
    return growth.to_note()
