"""Relaxed verification of image codes: a drafted code is judged with the probability of its nearest latent codes (LANTERN).

LANTERN (Jang et al., arXiv 2410.03355) and LANTERN++ (Park et al., arXiv 2502.06352). Of the k codes nearest to a drafted
code c, the longest nearest-first run A is taken whose mass S stays within the limit: delta, or (lambda - 1) p(c). Then c is
judged with P = p(c) + S in the place of p(c). Nothing is preserved exactly; what is proven (``tests`` enumerate it), above
temperature 0: certain candidates with A and c struck out after a rejection change the distribution by at most 1 - (1 - delta)^m
in total variation, m being their number. Candidates sampled without replacement, with the ordinary residual (p - q)+, change
it by at most TV(p, q), however many there are; under lambda no code becomes more than lambda times as likely, which is at
most 1 - 1/lambda in total variation. For the residual is zero wherever q was above what was left: a code takes over mass at
one sibling's turn only, and what is left of it by then has at most its own p. With delta 0, k 0 or lambda 1 the rule is
rejection without replacement; at temperature 0 one code may take the place of another altogether.
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
"""What a rejection leaves: the exact rule's residual, that of the distribution with A moved onto c, or the published code's."""
LADDER = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Sizes of a neighbourhood whose mass is noted, so that another limit can be tried on the recorded step."""
SHOWN = 10
"""Nearest latent codes whose own mass is noted, nearest first; the others only by id, as a map needs them."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Limit:
    """``delta`` bounds the mass a code takes over, ``factor`` (lambda) its whole mass in multiples of its own; one of them."""

    delta: float | None = None
    factor: float | None = None

    def of(self, p: float) -> float:
        """Most mass that a code of probability ``p`` may take over."""
        return self.delta if self.delta is not None else ((self.factor or 1.0) - 1.0) * p


def region(distribution: Tensor, code: int, neighbours: Tensor, limit: Limit) -> tuple[Tensor, Tensor]:
    """The nearest latent codes of ``code`` that it takes over under ``distribution`` [code], nearest first, and the running mass
    of all
    ``neighbours`` [rank] of it, float64."""
    sums = distribution[neighbours].double().cumsum(0)
    most = limit.of(float(distribution[code]))
    if most <= 0:  # at the strict end not even codes without any mass: what the published residual strikes hangs on them
        return neighbours[:0], sums
    return neighbours[: int((sums <= most + _ROUNDING).sum())], sums


@dataclass(frozen=True)
class Relaxed:
    """``neighbours`` int64 [code, rank], nearest first, at least ``k`` ranks, on the target's device. At temperature 0 a code is
    kept when it is the likeliest once its nearest latent codes' mass is moved onto it."""

    neighbours: Tensor
    limit: Limit
    k: int
    form: str = "exact"

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        return _Walk(self, draft, context, *_on_host(draft, target.logits, self.neighbours[:, : self.k + 1])).verdict()


def _on_host(draft: Draft, logits: Tensor, neighbours: Tensor) -> tuple[Tensor, Tensor, dict[int, Proposal]]:
    """What a walk may ask for, in one copy from a device: the target's ``logits`` [node, code], the rows [child, rank] of
    ``neighbours`` [code, rank] for all nodes but the root, and by node what its children were drawn from.

    Rows are whole ones, a few megabytes a tree: each rejection changes all of a row, and the last one draws from what is left.
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
    """One walk from the root of a scored tree downwards, with everything on the host: see :func:`_on_host`."""

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
        """The nearest latent codes of a child's, int64 [rank]."""
        return self.neighbours[child - 1, : self.rule.k]

    def _greedy(self, node: int, distribution: Tensor) -> tuple[int | None, Tensor]:
        """The first child whose code is the likeliest once it has taken over its nearest latent codes."""
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
        """The accepted child, if any, and what is left of the distribution: what replaces the children is drawn from it."""
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
        """What a rejection leaves of ``distribution``, not normalised."""
        form, code = self.rule.form, self.draft.tree.host_tokens[child]
        struck_codes = self._near(child)
        if len(region_codes):  # the published code strikes one neighbour more than k, whatever A holds
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
        """What the screen needs of one judged child, and enough to judge it again under another limit."""
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
    """A distribution over all codes, float64."""
    if ids is None:
        return probability.to(like)
    return torch.zeros_like(like).index_copy(0, ids, probability.to(like))


def _at(sums: Tensor, sizes: Sequence[int]) -> list[float]:
    return sums[[size - 1 for size in sizes]].tolist() if sizes else []


def packed(codes: Sequence[int]) -> str:
    """Ids below 65 536 as base64 of little-endian 16-bit numbers, so that a hundred of them stay short in a trace."""
    return base64.b64encode(struct.pack(f"<{len(codes)}H", *codes)).decode()


def nearest_codes(codebook: Tensor, most: int = 1025) -> Tensor:
    """int64 [code, rank]: for every code the others by distance of their vectors ``codebook`` [code, dim], nearest first.

    Vectors are as the decoder uses them. Computed in blocks, as all distances at once would be gigabytes for a real model.
    """
    count = min(most, len(codebook) - 1)
    wide, rows = codebook.double(), []
    for start in range(0, len(wide), 1024):
        distances = torch.cdist(wide[start : start + 1024], wide)
        distances[torch.arange(len(distances)), torch.arange(start, start + len(distances))] = float("inf")
        rows.append(distances.topk(count, largest=False, sorted=True).indices)
    return torch.cat(rows)
