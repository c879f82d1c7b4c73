"""Relaxed verification of image codes: the probability of the nearest latent codes is added to the drafted code's (LANTERN).

LANTERN (Jang et al., arXiv 2410.03355) and LANTERN++ (Park et al., arXiv 2502.06352). Sort the k codes nearest to a drafted
code c by distance. Let A be their longest prefix whose total mass S is within the limit: delta, or (lambda - 1) p(c). Then c is
judged with p(c) + S instead of p(c). The rule is not exact. Bounds on the total variation (TV) distance above temperature 0:

* Point-mass drafts: 1 - (1 - delta)^m for m candidates, if A and c are removed after a rejection.
* Candidates sampled without replacement, with residual (p - q)+: TV(p, q), for any number of candidates. With lambda, a code
  becomes at most lambda times as likely, so the distance is at most 1 - 1/lambda. Proof: a code c gains probability only in a
  trial with q(c) above the residual at c. That residual is zero afterwards, so c gains in at most one trial, where the
  unnormalised residual is at most p(c).

With delta 0, k 0 or lambda 1, the rule is rejection sampling without replacement. At temperature 0, there is no bound.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.acceptance.exact import statuses
from specviz.engine.interfaces import Context, Draft, Proposal, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.engine.to_device import to_host
from specviz.trace.notes.verdicts import RelaxedJudgement, RelaxedNote
from specviz.trace.schema import RELAXED

FORMS = ("exact", "aggregated", "repository")
"""Forms of the residual after a rejection: (p - q)+, the same with the mass of A moved onto c, or that of the authors' code."""
LADDER = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Neighbourhood sizes whose total mass is recorded, so that the viewer can repeat the judgement under another limit."""
SHOWN = 10
"""Number of nearest codes whose probability is recorded."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Limit:
    """Limit on the mass added to a code: ``delta``, or ``factor`` (lambda), the maximum ratio of new to original mass."""

    delta: float | None = None
    factor: float | None = None

    def of(self, p: float) -> float:
        """Return the maximum mass added to a code of probability ``p``."""
        return self.delta if self.delta is not None else ((self.factor or 1.0) - 1.0) * p


def region(distribution: Tensor, code: int, neighbours: Tensor, limit: Limit) -> tuple[Tensor, Tensor]:
    """Return the neighbours whose mass is added to ``code`` (A), nearest first, and the cumulative mass of ``neighbours``.

    ``distribution``: [code]; ``neighbours``: [rank], nearest first. The cumulative mass is float64 [rank].
    """
    sums = distribution[neighbours].double().cumsum(0)
    most = limit.of(float(distribution[code]))
    if most <= 0:  # leave out even codes of zero mass, because the "repository" residual requires an empty region
        return neighbours[:0], sums
    return neighbours[: int((sums <= most + _ROUNDING).sum())], sums


@dataclass(frozen=True)
class Relaxed:
    """Relaxed rule. At temperature 0, a code is accepted if it is the most likely after its neighbours' mass is moved onto it.

    ``neighbours``: int64 [code, rank], nearest first, with at least ``k`` ranks, on the target's device.
    """

    neighbours: Tensor
    limit: Limit
    k: int
    form: str = "exact"

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        logits, neighbours, proposals = _on_host(draft, target.logits, self.neighbours[:, : self.k + 1])
        tree, greedy = draft.tree, context.warp.greedy
        shape, tokens = tree.shape, tree.host_tokens
        visited, judged, relaxed = [0], list[int](), list[int]()
        thresholds, draws, judgements = dict[int, float](), dict[int, float](), list[RelaxedJudgement]()
        while True:
            node = visited[-1]
            best, proposal = int(logits[node].argmax()) if greedy else -1, proposals.get(node)
            left = distribution = context.warp.log_probabilities(logits[node]).double().exp()
            q = None
            if proposal is not None and not greedy:  # expand q from the support to the codebook
                q = proposal.probability.to(left)
                q = q if proposal.ids is None else torch.zeros_like(left).index_copy(0, proposal.ids, q)
            for child in shape.children[node]:
                code, near = tokens[child], neighbours[child - 1]
                region_codes, sums = region(left, code, near[: self.k], self.limit)
                share = 1.0 if q is None else float(q[code])
                judged.append(child)
                if context.record_notes:
                    with context.untimed:
                        judgements.append(self._judgement(child, code, left, near[: self.k], region_codes, sums, share))
                if greedy:
                    strict = code == best
                    accepted = strict or int(_move_mass(left, code, region_codes).argmax()) == code
                else:
                    p, mass = float(left[code]), float(left[region_codes].sum())
                    u = draws[child] = context.noise.uniform(ACCEPT, context.round, child)
                    thresholds[child] = min(1.0, (p + mass) / share)
                    accepted, strict = u < thresholds[child], u < min(1.0, p / share)
                if accepted:
                    visited.append(child)
                    relaxed += [] if strict else [child]
                    break
                if not greedy:
                    left = self._residual(left, q, code, near, region_codes)
                    left = left / left.sum() if float(left.sum()) > _ROUNDING else distribution
                if q is not None:
                    q = q.index_fill(0, torch.tensor([code]), 0.0)
                    q = q / q.sum().clamp_min(1e-300)
            else:
                break
        path = tuple(visited[1:])
        marks = list(statuses(shape, path, judged))
        for child in relaxed:
            marks[child] = RELAXED
        factor = self.limit.factor if self.limit.delta is None else None
        note = RelaxedNote(self.k, self.form, judgements, self.limit.delta, factor)
        return Verdict(
            rule="relaxed",
            path=path,
            bonus=best if greedy else draw(left, context.noise, context.position + 1 + shape.depths[node]),
            source="residual" if shape.children[node] and not greedy else "target",
            statuses=tuple(marks),
            visited=tuple(visited),
            thresholds=thresholds,
            draws=draws,
            certain=not draft.proposals,
            notes=context.notes(lambda: [note.to_note()] if judgements else []),
        )

    def _residual(self, left: Tensor, q: Tensor | None, code: int, near: Tensor, region_codes: Tensor) -> Tensor:
        """Return the unnormalised residual of ``left`` after ``code`` is rejected. ``near``: the ``k`` + 1 nearest codes."""
        if q is None:
            zeroed = near if self.form == "repository" and len(region_codes) else region_codes
            return left.index_fill(0, torch.cat((torch.tensor([code]), zeroed)), 0.0)
        if self.form == "repository" and len(region_codes):  # the authors' code removes k + 1 neighbours, whatever A is
            q = q.index_fill(0, near, 0.0)
        elif self.form == "aggregated":
            left = _move_mass(left, code, region_codes)
        return (left - q).clamp_min(0.0)

    def _judgement(
        self, child: int, code: int, left: Tensor, near: Tensor, region_codes: Tensor, sums: Tensor, share: float
    ) -> RelaxedJudgement:
        """Return the record of a judged child, with enough data to repeat the judgement under another limit."""
        p = float(left[code])
        steps = sorted({*(size for size in LADDER if size <= len(sums)), len(region_codes)} - {0})
        return RelaxedJudgement(
            node=child,
            p=p,
            q=share,
            limit=self.limit.of(p),
            count=len(region_codes),
            moved=float(left[region_codes].sum()),
            near=packed(near.tolist()),
            mass=left[near[:SHOWN]].tolist(),
            sums=list(zip(steps, sums[[size - 1 for size in steps]].tolist(), strict=True)),
        )


def _move_mass(distribution: Tensor, code: int, region_codes: Tensor) -> Tensor:
    """Return the distribution with the mass of ``region_codes`` moved onto ``code``."""
    moved = distribution.index_fill(0, region_codes, 0.0)
    moved[code] = distribution[code] + distribution[region_codes].sum()
    return moved


def _on_host(draft: Draft, logits: Tensor, neighbours: Tensor) -> tuple[Tensor, Tensor, dict[int, Proposal]]:
    """Copy the rule's inputs to the host in one transfer: ``logits`` [node, code], neighbours of the drafted codes, proposals.

    The rows are copied in full, a few megabytes per tree, because each rejection changes a whole row.
    """
    near, proposals = neighbours.index_select(0, draft.tree.tokens[1:]), dict(draft.proposals)
    if logits.device.type == "cpu":
        return logits, near, proposals
    supports = {node: proposal.ids for node, proposal in proposals.items() if proposal.ids is not None}
    parts = [logits, near, *(proposal.probability for proposal in proposals.values()), *supports.values()]
    logits, near, *copies = to_host(parts)
    ids = dict(zip(supports, copies[len(proposals) :], strict=True))
    return logits, near, {node: Proposal(q, ids.get(node)) for node, q in zip(proposals, copies, strict=False)}


def packed(codes: Sequence[int]) -> str:
    """Encode ids below 65 536 as base64 of little-endian 16-bit integers."""
    return base64.b64encode(struct.pack(f"<{len(codes)}H", *codes)).decode()


def nearest_codes(codebook: Tensor, most: int = 1025) -> Tensor:
    """Return the ``most`` nearest other codes of each code, int64 [code, rank], by Euclidean distance.

    ``codebook``: code vectors [code, dim] in the form that the decoder uses.
    """
    count = min(most, len(codebook) - 1)
    wide, rows = codebook.double(), []
    # In blocks, because the full distance matrix of a real model takes gigabytes.
    for start in range(0, len(wide), 1024):
        distances = torch.cdist(wide[start : start + 1024], wide)
        distances.diagonal(start).fill_(torch.inf)
        rows.append(distances.topk(count, largest=False, sorted=True).indices)
    return torch.cat(rows)
