"""N-gram store of STAND: n-grams with the target's top ten next tokens and their mean probabilities.

Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling" (arXiv 2506.04708). Entries hold probabilities
at temperature 1, from committed positions. The temperature of a run applies at lookup, so several decodings of one prompt
(*trajectories*) can share a store at different temperatures.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Pick, Proposal, Round
from specviz.engine.sampling import Warp
from specviz.engine.to_device import to_device
from specviz.trace.notes.drafts import NgramRow, NgramRowsNote
from specviz.trace.schema import Note

KEPT = 10
ORDERS = (4, 3, 2)
MOST_ENTRIES = 200_000


@dataclass
class Entry:
    """Statistics of one n-gram. ``distribution``: mean probability over ``visits`` by next token, most likely first."""

    visits: int
    distribution: dict[int, float]

    def add(self, distribution: dict[int, float]) -> None:
        """Update the mean over visits and keep the top ten tokens. A missing token has probability 0."""
        weight = 1.0 / (self.visits + 1)
        union = {token: p * (1 - weight) for token, p in self.distribution.items()}
        for token, p in distribution.items():
            union[token] = union.get(token, 0.0) + p * weight
        best = sorted(union.items(), key=lambda item: (-item[1], item[0]))[:KEPT]
        self.distribution = dict(best)
        self.visits += 1


class NgramStore:
    """Table of n-grams, shared by all trajectories of one prompt. A full store evicts the oldest entries.

    The key of an n-gram of order n has n - 1 tokens, so order 2 depends on the last token only.
    """

    def __init__(self, orders: Sequence[int] = ORDERS) -> None:
        self.orders = tuple(orders)
        self.entries: OrderedDict[tuple[int, ...], Entry] = OrderedDict()

    def learn(self, suffix: Sequence[int], distribution: dict[int, float]) -> None:
        """Add the target's top next tokens after ``suffix``, the last tokens of the text."""
        for order in self.orders:
            if len(suffix) >= order - 1:
                self.entries.setdefault(tuple(suffix[1 - order :]), Entry(0, {})).add(distribution)
        while len(self.entries) > MOST_ENTRIES:
            self.entries.popitem(last=False)

    def lookup(self, suffix: Sequence[int]) -> tuple[int, Entry] | None:
        """Return (order, entry) of the longest known n-gram at the end of ``suffix``; None if there is none."""
        for order in self.orders:
            if len(suffix) >= order - 1 and (entry := self.entries.get(tuple(suffix[1 - order :]))):
                return order, entry
        return None

    def order_at(self, suffix: Sequence[int]) -> int:
        """Return the order of the longest known n-gram at the end of ``suffix``; 0 if there is none."""
        hit = self.lookup(suffix)
        return 0 if hit is None else hit[0]


def best_tokens(logits: Tensor) -> list[dict[int, float]]:
    """Return the top tokens of each node, with probabilities at temperature 1, from ``logits`` [node, vocab]."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    best = wide.topk(min(KEPT, wide.shape[-1]), dim=-1)
    log_p = best.values - torch.logsumexp(wide, -1, keepdim=True)
    ids, p = best.indices.tolist(), log_p.exp().tolist()
    return [dict(zip(row, values, strict=True)) for row, values in zip(ids, p, strict=True)]


def warped(distribution: dict[int, float], warp: Warp) -> list[float]:
    """Return the probabilities of a stored distribution under ``warp``, normalised; temperature 0 counts as 1."""
    temperature = 1.0 if warp.greedy else warp.temperature
    peak = max(distribution.values())
    scores = [math.exp(math.log(max(p, 1e-30) / peak) / temperature) for p in distribution.values()]
    if not warp.greedy and (warp.top_k or warp.top_p < 1.0):
        return Warp(1.0, warp.top_k, warp.top_p).probabilities(torch.tensor(scores, dtype=torch.float64).log()).tolist()
    total = sum(scores)
    return [score / total for score in scores]


class NgramDrafter(NullDrafter):
    """Drafter that reads ``store`` and updates it from the target's logits at committed positions."""

    def __init__(self, store: NgramStore) -> None:
        self.store = store
        self._orders: dict[int, int] = {}

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        if nodes == [0]:
            self._orders = {}
        return [self._row(context, tokens, parents, node) for node in nodes]

    def _row(self, context: Context, tokens: Sequence[int], parents: Sequence[int], node: int) -> Proposal | None:
        path, at, longest = list[int](), node, max(self.store.orders)
        while at > 0:
            path.append(tokens[at])
            at = parents[at]
        hit = self.store.lookup([*context.ids[-longest:], *reversed(path)][-longest:])
        if hit is None:
            return None
        self._orders[node], entry = hit
        # On the host, since ten numbers are not worth a copy to the GPU.
        probability = torch.tensor(warped(entry.distribution, context.warp), dtype=torch.float64)
        return Proposal(probability, torch.tensor(list(entry.distribution)))

    def calls(self) -> int:
        """Return 1: all lookups of a round count as one call."""
        return 1

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        rows = [
            NgramRow(
                node=pick.node,
                order=self._orders[pick.node],
                tokens=[] if (ids := pick.proposal.ids) is None else ids.tolist(),
                probability=pick.proposal.probability.tolist(),
                perturbed=[] if pick.perturbed is None else pick.perturbed.clamp(-1e3, 1e3).tolist(),
                order_taken=pick.order.tolist(),
                picked=pick.picked,
            )
            for pick in picks
        ]
        return (NgramRowsNote(rows, len(self.store.entries)).to_note(),)

    def observe(self, finished: Round) -> None:
        visited = finished.verdict.visited[: len(finished.emitted)]
        logits = finished.target.logits
        distributions = best_tokens(logits.index_select(0, to_device(visited, logits.device)))
        text = [*finished.context.ids[-max(self.store.orders) :]]
        for row, token in zip(distributions, finished.emitted, strict=True):
            self.store.learn(text, row)
            text.append(token)
