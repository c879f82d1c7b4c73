"""Speculative rejection sampling: the ratio test on a chain, and without replacement among the siblings of a tree.

Leviathan et al. (arXiv 2211.17192) algorithm 1 and Chen et al. (arXiv 2302.01318) for the chain; for siblings the
recursive form of SpecInfer and EAGLE. Each child is accepted with probability min(1, r/q), where r is the target's
residual. Exact only for children drawn from q, in draw order. A node without a stored distribution has children chosen
deterministically; each then counts as a point mass (q = 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specviz.acceptance.match import Match
from specviz.acceptance.residual import Residual, remaining
from specviz.acceptance.tree_probabilities import TreeProbabilities
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.engine.verdict import statuses
from specviz.trace.notes.verdicts import OverlapNote, OverlapPosition


class Rejection:
    """Top-down rejection. At temperature 0 both distributions are point masses and the rule is plain greedy matching."""

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        if context.warp.greedy:
            return Match().judge(draft, target, context)
        return _Walk(draft, context, TreeProbabilities(draft, target, context.warp)).verdict()


@dataclass
class _Walk:
    """One top-down walk over one scored tree."""

    draft: Draft
    context: Context
    probabilities: TreeProbabilities
    path: list[int] = field(default_factory=list)
    visited: list[int] = field(default_factory=lambda: [0])
    judged: list[int] = field(default_factory=list)
    thresholds: dict[int, float] = field(default_factory=dict)
    draws: dict[int, float] = field(default_factory=dict)
    overlaps: list[OverlapPosition] = field(default_factory=list)

    def verdict(self) -> Verdict:
        shape, node = self.draft.tree.shape, 0
        while True:
            left = self._at(node)
            child = self._try_children(node, left)
            if child is None:
                break
            node = child
        place = self.context.position + 1 + shape.depths[node]
        rejected = bool(shape.children[node])
        return Verdict(
            rule="ratio" if all(len(row) <= 1 for row in shape.children) else "without_replacement",
            path=tuple(self.path),
            bonus=draw(left.distribution(), self.context.noise, place),
            source="residual" if rejected else "target",
            statuses=statuses(shape, self.path, self.judged),
            visited=tuple(self.visited),
            thresholds=self.thresholds,
            draws=self.draws,
            certain=not self.draft.proposals,
            notes=self.context.notes(lambda: [OverlapNote(self.overlaps).to_note()] if self.overlaps else []),
        )

    def _at(self, node: int) -> Residual:
        """The two distributions at ``node`` before any of its children is tried."""
        tree, proposal = self.draft.tree, self.draft.proposals.get(node)
        offered = [tree.host_tokens[child] for child in tree.shape.children[node]]
        known = self.probabilities.table(node) if self.probabilities.remote and offered else None
        left = remaining(self.probabilities.row(node), proposal, offered, known)
        if self.context.record_notes and proposal is not None:
            with self.context.untimed:  # before the children are judged, which changes the residual
                self.overlaps.append(left.overlap(node))
        return left

    def _try_children(self, node: int, left: Residual) -> int | None:
        """Return the accepted child of ``node``, if any; otherwise ``left`` becomes the replacement token's distribution."""
        tokens = self.draft.tree.host_tokens
        for child in self.draft.tree.shape.children[node]:
            self.judged.append(child)
            self.thresholds[child] = left.threshold(tokens[child])
            # Keyed by round as well: a later round may try a position again, with a fresh uniform draw.
            self.draws[child] = self.context.noise.uniform(ACCEPT, self.context.round, child)
            if self.draws[child] < self.thresholds[child]:
                self.path.append(child)
                self.visited.append(child)
                return child
            left.reject(tokens[child])
        return None
