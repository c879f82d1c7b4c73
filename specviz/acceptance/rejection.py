"""Rejection of sampled drafts: the ratio test on a chain, and without replacement among the siblings of a tree.

Leviathan et al. (arXiv 2211.17192) algorithm 1 and Chen et al. (arXiv 2302.01318) for the chain; for siblings the recursive
form of SpecInfer and EAGLE: a rejected child's law is subtracted from the target's, the child is struck from the drafter's.
Each child is accepted with min(1, r/q), r being what is left of the target. Sound only for children really drawn from q, in
draw order. A node without a stored law has children chosen deterministically; each then counts as a point mass (q = 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.acceptance.match import Match
from specviz.engine.interfaces import Context, Draft, Proposal, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.engine.verdict import statuses
from specviz.trace.schema import Note

SHOWN = 8


@dataclass
class Remaining:
    """The two laws at one node while its children are tried: ``target`` [vocab] and the drafter's [support].

    The target's is kept unnormalised beside its ``mass``, so that a rejection touches the drafter's support only.
    """

    target: Tensor
    proposal: Proposal | None
    mass: float = 1.0
    drafter: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.target = self.target.clone()
        if self.proposal is not None:
            self.drafter = self.proposal.probability.to(self.target.dtype).clone()

    def _slot(self, token: int) -> Tensor | int:
        """Where ``token`` stands in the drafter's support."""
        assert self.proposal is not None
        if self.proposal.ids is None:
            return token
        return (self.proposal.ids == token).nonzero()[0, 0]

    def threshold(self, token: int) -> float:
        """min(1, r(token) / q(token))."""
        here = float(self.target[token]) / self.mass
        share = 1.0 if self.proposal is None else float(self.drafter[self._slot(token)])
        return min(1.0, here / share) if share > 0 else float(here > 0)

    def reject(self, token: int) -> None:
        """r becomes norm((r - q)+); then the token leaves q, which is renormalised."""
        if self.proposal is None:
            self.mass -= float(self.target[token])
            self.target[token] = 0.0
            self._settle()
            return
        ids = self.proposal.ids
        before = self.target if ids is None else self.target[ids]
        after = (before - self.drafter * self.mass).clamp_min(0.0)
        self.mass += float(after.sum() - before.sum())
        if ids is None:
            self.target = after
        else:
            self.target[ids] = after
        self.drafter[self._slot(token)] = 0.0
        self.drafter = self.drafter / self.drafter.sum().clamp_min(torch.finfo(self.drafter.dtype).tiny)
        self._settle()

    def _settle(self) -> None:
        """Guard against a mass that rounding has made tiny: take the sum afresh, it is then worth its cost."""
        if self.mass < 1e-3:
            self.mass = max(float(self.target.sum()), torch.finfo(self.target.dtype).tiny)


class Rejection:
    """Top-down rejection. At temperature 0 both laws are point masses and the rule is plain greedy matching."""

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        if context.warp.greedy:
            return Match().judge(draft, target, context)
        return _Walk(draft, target, context).verdict()


@dataclass
class _Walk:
    """One top-down walk over one scored tree."""

    draft: Draft
    target: TargetPass
    context: Context
    path: list[int] = field(default_factory=list)
    visited: list[int] = field(default_factory=lambda: [0])
    judged: list[int] = field(default_factory=list)
    thresholds: dict[int, float] = field(default_factory=dict)
    draws: dict[int, float] = field(default_factory=dict)
    shown: list[dict[str, object]] = field(default_factory=list)

    def verdict(self) -> Verdict:
        shape, node = self.draft.tree.shape, 0
        while True:
            left = Remaining(self.context.warp.probabilities(self.target.logits[node]), self.draft.proposals.get(node))
            if self.context.story and left.proposal is not None:
                self.shown.append(_overlap(node, left))
            found = self._try_children(node, left)
            if found is None:
                break
            node = found
        place = self.context.position + 1 + shape.depths[node]
        rejected = bool(shape.children[node])
        return Verdict(
            rule="ratio" if all(len(row) <= 1 for row in shape.children) else "without_replacement",
            path=tuple(self.path),
            bonus=draw(left.target, self.context.noise, place),
            source="residual" if rejected else "target",
            statuses=statuses(shape, self.path, self.judged),
            visited=tuple(self.visited),
            thresholds=self.thresholds,
            draws=self.draws,
            notes=(Note("overlap", {"positions": self.shown}),) if self.shown else (),
        )

    def _try_children(self, node: int, left: Remaining) -> int | None:
        """The accepted child of ``node``, if any; ``left`` ends as the law of the token that replaces it."""
        tokens = self.draft.tree.host_tokens
        for child in self.draft.tree.shape.children[node]:
            self.judged.append(child)
            self.thresholds[child] = left.threshold(tokens[child])
            # Keyed by round as well: a place may be tried again by a later round, with a fresh coin.
            self.draws[child] = self.context.noise.uniform(ACCEPT, self.context.round, child)
            if self.draws[child] < self.thresholds[child]:
                self.path.append(child)
                self.visited.append(child)
                return child
            left.reject(tokens[child])
        return None


def _overlap(node: int, left: Remaining) -> dict[str, object]:
    """p and q side by side at the tokens that matter, and sum min(p, q): the chance that one sampled child survives."""
    proposal = left.proposal
    assert proposal is not None
    ids = proposal.ids
    p_there = left.target if ids is None else left.target[ids]
    overlap = float(torch.minimum(p_there, left.drafter).sum())
    places = torch.topk(torch.maximum(p_there, left.drafter), min(SHOWN, p_there.numel())).indices
    tokens = places if ids is None else ids[places]
    return {
        "node": node,
        "tokens": tokens.tolist(),
        "p": p_there[places].tolist(),
        "q": left.drafter[places].tolist(),
        "overlap": overlap,
    }
