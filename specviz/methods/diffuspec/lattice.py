"""Beam search through a lattice of marginal distributions, and the length of the next lattice.

DiffuSpec (arXiv 2510.02358). A denoising step yields independent marginal distributions for all positions. *Lattice*: each
position's top tokens, up to a fraction of its mass. *Causal-consistency search*: a left-to-right beam search, scored by a mix of
that distribution and an n-gram model, so that neighbouring tokens fit together. *Adaptive length*: the running mean number of
masks drafted before an end-of-text token, and more while all are accepted; as published, rejections alone do not shorten it. A
searched path is not a sample, so it is verified as a point mass: the target samples first. Axis names: ``place``, ``candidate``,
``beam``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specviz.drafting.memory.ngram_model import NgramModel
from specviz.engine.to_device import to_device


@dataclass(frozen=True)
class Column:
    """The kept tokens of one position, most likely first, with log q [candidate]."""

    tokens: np.ndarray
    log_q: np.ndarray


@dataclass(frozen=True)
class Step:
    """The beams after one position: the parent beam, candidate and cumulative score of each."""

    parents: tuple[int, ...]
    picks: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Search:
    """Result of a search. ``path`` are the best beam's tokens, ``log_q`` their marginal log-probabilities. ``ended``: the path
    ends with an end-of-text token."""

    path: tuple[int, ...]
    log_q: tuple[float, ...]
    steps: tuple[Step, ...]
    ended: bool


def columns(log_q: Tensor, support: Tensor, mass: float, cap: int, ends: frozenset[int]) -> list[Column]:
    """Return, from log q [place, support], each position's smallest set of top tokens that holds ``mass``, at most ``cap``.

    End-of-text tokens are always candidates. The lattice ends at the fence: the first position whose top token ends the text.
    """
    best = log_q.topk(min(cap, log_q.shape[-1]), dim=-1)
    wanted = to_device(sorted(ends), support.device)
    places = (support == wanted[:, None]).long()
    parts = [support[best.indices], best.values, places.amax(1), places.argmax(1), log_q[:, places.argmax(1)]]
    # One copy to the host for all: ids and indices are exact in a double.
    flat = torch.cat([part.double().flatten() for part in parts]).cpu().split([part.numel() for part in parts])
    on_host = [copy.view(part.shape).numpy() for copy, part in zip(flat, parts, strict=True)]
    ids, values, at_all, end_places, end_q = on_host[0].astype(np.int64), on_host[1], on_host[2], on_host[3], on_host[4]
    ending = [end for end in np.argsort(end_places, kind="stable") if at_all[end]]
    cumulative = np.exp(values).cumsum(-1)
    end_q, end_ids = end_q[:, ending], np.array(sorted(ends), dtype=np.int64)[ending]
    lattice: list[Column] = []
    for place in range(len(ids)):
        size = int((cumulative[place] < mass).sum()) + 1
        tokens, shares = ids[place][:size], values[place][:size]
        extra = [at for at, token in enumerate(end_ids) if token not in tokens]
        lattice.append(Column(np.append(tokens, end_ids[extra]), np.append(shares, end_q[place][extra])))
        if int(tokens[0]) in ends:
            break
    return lattice


def fence(lattice: Sequence[Column], ends: frozenset[int]) -> int | None:
    """Return the number of columns if the lattice was cut at an end-of-text token (the last column's top token), else None."""
    return len(lattice) if lattice and int(lattice[-1].tokens[0]) in ends else None


def search(
    lattice: Sequence[Column], ngrams: NgramModel, before: Sequence[int], weight: float, width: int, ends: frozenset[int]
) -> Search:
    """Return the path with the largest sum of ``weight`` log q + (1 - ``weight``) log p over its positions, with ``width`` beams.

    The path ends when the best beam takes an end-of-text token. Other beams that take one are dropped.
    """
    last = np.array([list(before)[-2:]], dtype=np.int64)
    scores, steps, trail = np.zeros(1), list[Step](), list[list[int]]([[]])
    ended = False
    for column in lattice:
        gained = weight * column.log_q[None]
        if weight < 1:
            gained = gained + (1 - weight) * ngrams.log_probability(last, column.tokens)
        total = (scores[:, None] + gained).ravel()
        order = np.argsort(-total, kind="stable")
        parent, pick = np.divmod(order, len(column.tokens))
        ended = int(column.tokens[pick[0]]) in ends
        going = np.array([int(token) not in ends for token in column.tokens[pick]])
        chosen = np.flatnonzero(going | (np.arange(len(order)) == 0))[:width]
        parent, pick = parent[chosen], pick[chosen]
        steps.append(Step(tuple(parent.tolist()), tuple(pick.tolist()), tuple(total[order[chosen]].tolist())))
        trail = [[*trail[beam], take] for beam, take in zip(parent.tolist(), pick.tolist(), strict=True)]
        if ended:
            break
        last = np.stack((last[parent, 1], column.tokens[pick]), 1)
        scores = total[order[chosen]]
    path = list(zip(lattice, trail[0], strict=False))
    tokens = tuple(int(column.tokens[pick]) for column, pick in path)
    return Search(tokens, tuple(float(column.log_q[pick]) for column, pick in path), tuple(steps), ended)


@dataclass(frozen=True)
class LengthRule:
    """Draft lengths in tokens, from ``shortest`` to ``longest``: ``stride`` more while all drafted tokens are accepted.

    Accepted lengths exceed drafted ones only before a fence (:func:`fence`). If drafts are rejected and no end-of-text token is
    drafted, the length falls from ``longest`` to half of it or to ``shortest``, and stays there.

    ``keep`` is the weight of the old running mean in each update. The published values are 20, 30 and 10.
    """

    shortest: int
    longest: int
    stride: int
    keep: float = 0.5


@dataclass(frozen=True)
class Gauge:
    """Running means of the number of tokens drafted before an end-of-text token, and of those accepted."""

    rule: LengthRule
    drafted: float = 0.0
    accepted: float = 0.0
    rounds: int = 0

    @property
    def length(self) -> int:
        """Number of masks in the next round: the maximum at first, then from the means."""
        if not self.rounds:
            return self.rule.longest
        more = self.rule.stride if self.accepted >= self.drafted else 0
        return min(self.rule.longest, max(self.rule.shortest, math.floor(self.drafted) + more))

    def after(self, drafted: int, accepted: int) -> Gauge:
        """Return the gauge updated with a finished round."""
        keep, new = self.rule.keep, 1 - self.rule.keep
        drafting, accepting = (keep * old + new * now for old, now in ((self.drafted, drafted), (self.accepted, accepted)))
        return Gauge(self.rule, drafting, accepting, self.rounds + 1)


def distribution(logits: Tensor) -> Tensor:
    """Return log q [place, support] at temperature 1, whatever the run's: the search is deterministic, not sampling."""
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)
