"""Relaxed verification of image codes: a drafted code is judged with the probability of its nearest latent codes (LANTERN).

LANTERN (Jang et al., arXiv 2410.03355) and LANTERN++ (Park et al., arXiv 2502.06352). Of the k codes nearest to a drafted
code c, A is the longest nearest-first prefix whose total mass S stays within the limit: delta, or (lambda - 1) p(c). Then c is
judged with P = p(c) + S instead of p(c). The rule is not exact. Proven bounds above temperature 0 (``tests`` enumerate
them):

* m deterministically chosen candidates (point masses), with A and c removed after a rejection, change the distribution by at
  most 1 - (1 - delta)^m in total variation.
* Candidates sampled without replacement, with the ordinary residual (p - q)+, change it by at most TV(p, q), for any number of
  them; under lambda no code becomes more than lambda times as likely, which is at most 1 - 1/lambda in total variation. Why: a
  code can be over-accepted only in a trial where q exceeds the residual at it. The residual there is zero afterwards, so each
  code gains mass in at most one trial, where its unnormalised residual is at most p.

With delta 0, k 0 or lambda 1 the rule is rejection without replacement; at temperature 0 one code may replace another
entirely.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.engine.interfaces import Context, Draft, Proposal, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.engine.to_device import to_host
from specviz.engine.verdict import statuses
from specviz.trace.notes.verdicts import RelaxedJudgement, RelaxedNote
from specviz.trace.schema import RELAXED, Note

FORMS = ("exact", "aggregated", "repository")
"""Residual after a rejection: the exact rule's (p - q)+; the same with A's mass moved onto c; or that of the authors'
implementation."""
LADDER = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Neighbourhood sizes whose mass is recorded, so that another limit can be tried on the recorded step."""
SHOWN = 10
"""Nearest latent codes whose own mass is recorded, nearest first; the others are recorded only by id, for a map."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Limit:
    """Limit of a code's mass: ``delta`` bounds the mass that it gains; alternatively ``factor`` (lambda) bounds its total mass as
    a multiple of its original one."""

    delta: float | None = None
    factor: float | None = None

    def of(self, p: float) -> float:
        """Return the maximum mass that a code of probability ``p`` may gain."""
        return self.delta if self.delta is not None else ((self.factor or 1.0) - 1.0) * p


def region(distribution: Tensor, code: int, neighbours: Tensor, limit: Limit) -> tuple[Tensor, Tensor]:
    """Return the neighbours (A) whose mass under ``distribution`` [code] is added to the mass of ``code``, nearest first, and
    the cumulative mass of all its ``neighbours`` [rank], float64."""
    sums = distribution[neighbours].double().cumsum(0)
    most = limit.of(float(distribution[code]))
    if most <= 0:  # exclude even codes of zero mass, since the authors' residual depends on the region being empty
        return neighbours[:0], sums
    return neighbours[: int((sums <= most + _ROUNDING).sum())], sums


@dataclass(frozen=True)
class Relaxed:
    """Relaxed rule. ``neighbours`` int64 [code, rank], nearest first, has at least ``k`` ranks and is on the target's device. At
    temperature 0 a code is accepted if it is the likeliest once its nearest latent codes' mass is moved onto it."""

    neighbours: Tensor
    limit: Limit
    k: int
    form: str = "exact"

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        return _Walk(self, draft, context, *_on_host(draft, target.logits, self.neighbours[:, : self.k + 1])).verdict()


def _on_host(draft: Draft, logits: Tensor, neighbours: Tensor) -> tuple[Tensor, Tensor, dict[int, Proposal]]:
    """Copy a walk's inputs from the device at once: the target's ``logits`` [node, code], the rows [child, rank] of
    ``neighbours`` [code, rank] for all nodes but the root, and each node's proposal.

    Whole rows are copied, a few megabytes per tree: each rejection changes a whole row, and the residual is sampled at the end.
    """
    near, proposals = neighbours.index_select(0, draft.tree.tokens[1:]), dict(draft.proposals)
    if logits.device.type == "cpu":
        return logits, near, proposals
    supports = {node: proposal.ids for node, proposal in proposals.items() if proposal.ids is not None}
    parts = [logits, near, *(proposal.probability for proposal in proposals.values()), *supports.values()]
    logits, near, *copies = to_host(parts)
    ids = dict(zip(supports, copies[len(proposals) :], strict=True))
    return logits, near, {node: Proposal(q, ids.get(node)) for node, q in zip(proposals, copies, strict=False)}


@dataclass
class _Walk:
    """One walk down a scored tree, with all inputs on the host: see :func:`_on_host`."""

    rule: Relaxed
    draft: Draft
    context: Context
    logits: Tensor
    neighbours: Tensor
    proposals: dict[int, Proposal]
    path: list[int] = field(default_factory=list)
    visited: list[int] = field(default_factory=lambda: [0])
    judged: list[int] = field(default_factory=list)
    relaxed: set[int] = field(default_factory=set)
    thresholds: dict[int, float] = field(default_factory=dict)
    draws: dict[int, float] = field(default_factory=dict)
    judgements: list[RelaxedJudgement] = field(default_factory=list)

    def verdict(self) -> Verdict:
        shape, node = self.draft.tree.shape, 0
        while True:
            logits = self.logits[node]
            distribution = self.context.warp.log_probabilities(logits).double().exp()
            child, left = self._greedy(node, distribution) if self.context.warp.greedy else self._sampled(node, distribution)
            if child is None:
                break
            self.path.append(child)
            self.visited.append(child)
            node = child
        marks = list(statuses(shape, self.path, self.judged))
        for relaxed_node in self.relaxed:
            marks[relaxed_node] = RELAXED
        place = self.context.position + 1 + shape.depths[node]
        greedy = self.context.warp.greedy
        tried = bool(shape.children[node]) and not greedy
        return Verdict(
            rule="relaxed",
            path=tuple(self.path),
            bonus=int(logits.argmax()) if greedy else draw(left, self.context.noise, place),
            source="residual" if tried else "target",
            statuses=tuple(marks),
            visited=tuple(self.visited),
            thresholds=self.thresholds,
            draws=self.draws,
            certain=not self.draft.proposals,
            notes=self.context.notes(self._notes),
        )

    def _notes(self) -> tuple[Note, ...]:
        if not self.judgements:
            return ()
        limit = self.rule.limit
        factor = limit.factor if limit.delta is None else None
        return (RelaxedNote(self.rule.k, self.rule.form, self.judgements, limit.delta, factor).to_note(),)

    def _near(self, child: int) -> Tensor:
        """Nearest latent codes of a child's code, int64 [rank]."""
        return self.neighbours[child - 1, : self.rule.k]

    def _greedy(self, node: int, distribution: Tensor) -> tuple[int | None, Tensor]:
        """Return the first child whose code is the likeliest once it gains its nearest latent codes' mass."""
        best = int(self.logits[node].argmax())
        for child in self.draft.tree.shape.children[node]:
            code = self.draft.tree.host_tokens[child]
            region_codes, sums = region(distribution, code, self._near(child), self.rule.limit)
            moved = distribution.index_fill(0, region_codes, 0.0)
            moved[code] = distribution[code] + distribution[region_codes].sum()
            self.judged.append(child)
            self._record(child, code, distribution, region_codes, sums, 1.0)
            if code == best or int(moved.argmax()) == code:
                self._note_if_relaxed(child, code != best)
                return child, distribution
        return None, distribution

    def _sampled(self, node: int, distribution: Tensor) -> tuple[int | None, Tensor]:
        """Return the accepted child, if any, and the residual, from which the replacement is drawn."""
        proposal = self.proposals.get(node)
        q = None if proposal is None else _dense(proposal.probability, proposal.ids, distribution)
        left = distribution
        for child in self.draft.tree.shape.children[node]:
            code = self.draft.tree.host_tokens[child]
            region_codes, sums = region(left, code, self._near(child), self.rule.limit)
            mass = float(left[region_codes].sum())
            p, share = float(left[code]), 1.0 if q is None else float(q[code])
            threshold, strict = min(1.0, (p + mass) / share), min(1.0, p / share)
            u = self.context.noise.uniform(ACCEPT, self.context.round, child)
            self.judged.append(child)
            self.thresholds[child], self.draws[child] = threshold, u
            self._record(child, code, left, region_codes, sums, share)
            if u < threshold:
                self._note_if_relaxed(child, u >= strict)
                return child, left
            left = self._residual(left, q, child, region_codes)
            left = left / left.sum() if float(left.sum()) > _ROUNDING else distribution
            if q is not None:
                q = q.index_fill(0, torch.tensor([code]), 0.0)
                q = q / q.sum().clamp_min(1e-300)
        return None, left

    def _residual(self, distribution: Tensor, q: Tensor | None, child: int, region_codes: Tensor) -> Tensor:
        """Return the unnormalised residual of ``distribution`` after a rejection."""
        form, code = self.rule.form, self.draft.tree.host_tokens[child]
        struck_codes = self._near(child)
        if len(region_codes):  # the authors' implementation removes k + 1 neighbours, whatever A contains
            struck_codes = self.neighbours[child - 1]
        if q is None:
            zeroed_codes = struck_codes if form == "repository" and len(region_codes) else region_codes
            return distribution.index_fill(0, torch.cat((torch.tensor([code]), zeroed_codes)), 0.0)
        if form == "repository":
            return (distribution - (q.index_fill(0, struck_codes, 0.0) if len(region_codes) else q)).clamp_min(0.0)
        if form == "aggregated":
            moved = distribution.index_fill(0, region_codes, 0.0)
            moved[code] = distribution[code] + distribution[region_codes].sum()
            return (moved - q).clamp_min(0.0)
        return (distribution - q).clamp_min(0.0)

    def _note_if_relaxed(self, child: int, relaxed: bool) -> None:
        if relaxed:
            self.relaxed.add(child)

    def _record(self, child: int, code: int, distribution: Tensor, region_codes: Tensor, sums: Tensor, share: float) -> None:
        """Record one judged child for the screen, with enough data to judge it again under another limit."""
        if self.context.record_notes:
            with self.context.untimed:
                self.judgements.append(self._judgement(child, code, distribution, region_codes, sums, share))

    def _judgement(
        self, child: int, code: int, distribution: Tensor, region_codes: Tensor, sums: Tensor, share: float
    ) -> RelaxedJudgement:
        p = float(distribution[code])
        steps = sorted({*(size for size in LADDER if size <= len(sums)), len(region_codes)} - {0})
        return RelaxedJudgement(
            node=child,
            p=p,
            q=share,
            limit=self.rule.limit.of(p),
            count=len(region_codes),
            moved=float(distribution[region_codes].sum()),
            near=packed(self._near(child).tolist()),
            mass=distribution[self._near(child)[:SHOWN]].tolist(),
            sums=list(zip(steps, _at(sums, steps), strict=True)),
        )


def _dense(probability: Tensor, ids: Tensor | None, like: Tensor) -> Tensor:
    """Expand a distribution to all codes, in the dtype of ``like``."""
    if ids is None:
        return probability.to(like)
    return torch.zeros_like(like).index_copy(0, ids, probability.to(like))


def _at(sums: Tensor, sizes: Sequence[int]) -> list[float]:
    return sums[[size - 1 for size in sizes]].tolist() if sizes else []


def packed(codes: Sequence[int]) -> str:
    """Encode ids below 65 536 as base64 of little-endian 16-bit numbers, to keep a trace short."""
    return base64.b64encode(struct.pack(f"<{len(codes)}H", *codes)).decode()


def nearest_codes(codebook: Tensor, most: int = 1025) -> Tensor:
    """Return the ``most`` nearest neighbours of every code, itself excluded, int64 [code, rank], by distance in ``codebook``
    [code, dim].

    ``codebook`` must hold the vectors in the form that the decoder uses. Computed in blocks, since all distances at once would
    take gigabytes for a real model.
    """
    count = min(most, len(codebook) - 1)
    wide, rows = codebook.double(), []
    for start in range(0, len(wide), 1024):
        distances = torch.cdist(wide[start : start + 1024], wide)
        distances[torch.arange(len(distances)), torch.arange(start, start + len(distances))] = float("inf")
        rows.append(distances.topk(count, largest=False, sorted=True).indices)
    return torch.cat(rows)
