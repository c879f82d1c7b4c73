"""Traversal Verification: a draft tree verified from its leaves upwards, so that a good descendant can rescue a weak parent.

Traversal Verification (Weng et al., arXiv 2505.12398); on a chain it is Block Verification (Sun et al., arXiv 2403.10444). A node
is entered with the weight min(1, w p/q), w and p being its parent's current residual. A leaf is accepted with probability equal
to its weight, together with the whole path above it. After a failed child the parent's residual is [w p - q]+. With S its mass, p
becomes norm([w p - q]+), w becomes S / (S + 1 - w), and q the distribution of the next sibling. Once all children have failed,
the node is tested like a leaf. The root's weight stays 1.

Invariant, by induction from the leaves: a node entered with weight w is accepted (itself or a descendant) with probability w over
the random draws below it, and its continuation then has the target's distribution. So the rule is exact for children sampled
without replacement and kept in sampling order. On a chain it never accepts fewer tokens on average than the top-down rule. On a
tree it mostly accepts more, but not always: a leaf sampled before a sibling with children is tested first, at the expense of
those children. Children of a node without a stored distribution were chosen deterministically. Each counts as a point mass, and
the rule accepts as often as the top-down one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specviz.acceptance.match import Match
from specviz.acceptance.rejection import Rejection
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.engine.verdict import statuses
from specviz.methods.traversal.residual import NodeResidual, TreeResiduals
from specviz.trace.notes.verdicts import TraversalNote, Visit
from specviz.trace.schema import Note


class Traversal:
    """Leaf-to-root verification. At temperature 0 both distributions are point masses and the rule is plain greedy matching.

    A verdict's ``thresholds`` are the weights compared with uniform draws, in the order of the visits: the failed nodes, then the
    accepted one if it is not the root. Nodes above it on the path were accepted without a uniform draw.
    """

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        if context.warp.greedy:
            return Match().judge(draft, target, context)
        return _Walk(draft, target, context).verdict()


@dataclass
class _Visit:
    """A current or past node of the walk: its initial weight, and the number of children tried so far."""

    node: int
    start: float
    owed: NodeResidual | None
    tried: int = 0

    @property
    def weight(self) -> float:
        return self.start if self.owed is None else self.owed.weight


@dataclass
class _Walk:
    """One post-order walk over one scored tree, ending at the first node whose uniform draw falls below its weight."""

    draft: Draft
    target: TargetPass
    context: Context
    judged: list[_Visit] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)
    draws: dict[int, float] = field(default_factory=dict)

    def verdict(self) -> Verdict:
        shape = self.draft.tree.shape
        debts = TreeResiduals(self.draft, self.target, self.context.warp)
        end = self._walk(debts)
        path = shape.path(end.node)[1:]
        bonus = debts.distribution(end.node)  # not normalised
        if end.owed is not None:
            bonus = end.owed.distribution(bonus)
        return Verdict(
            rule="traversal",
            path=path,
            bonus=draw(bonus, self.context.noise, self.context.position + 1 + len(path)),
            source="residual" if end.tried else "target",
            statuses=statuses(shape, path, list(self.draws)),
            visited=(*(node for node in self.entered if node != end.node), end.node),
            thresholds={visit.node: visit.weight for visit in self.judged if visit.node},
            draws=self.draws,
            certain=not self.draft.proposals,
            notes=self.context.notes(lambda: [self._note(path)] if len(shape) > 1 else []),
        )

    def _walk(self, debts: TreeResiduals) -> _Visit:
        """Walk the tree; return the last visit. ``judged`` is then in post-order, the last visit included."""
        children = self.draft.tree.shape.children
        open_visits = [self._enter(0, 1.0, debts)]
        while True:
            visit = open_visits[-1]
            if visit.owed is not None and visit.tried < len(children[visit.node]):
                child = children[visit.node][visit.tried]
                visit.tried += 1
                open_visits.append(self._enter(child, visit.owed.weight_of(self._token(child)), debts))
                continue
            self.judged.append(visit)
            if visit.node == 0:
                return visit
            # Keyed by round too: a later round may test a position again, with a fresh uniform draw.
            self.draws[visit.node] = self.context.noise.uniform(ACCEPT, self.context.round, visit.node)
            if self.draws[visit.node] < visit.weight:
                return visit
            open_visits.pop()
            above = open_visits[-1].owed
            assert above is not None
            above.fail(self._token(visit.node))

    def _enter(self, node: int, weight: float, debts: TreeResiduals) -> _Visit:
        """Return a new visit. Children of a node of weight 0 are skipped, since no node below it can be accepted."""
        if weight == 0 or not self.draft.tree.shape.children[node]:
            return _Visit(node, weight, None)
        self.entered.append(node)
        return _Visit(node, weight, debts.at(node, weight))

    def _token(self, node: int) -> int:
        return self.draft.tree.host_tokens[node]

    def _note(self, path: tuple[int, ...]) -> Note:
        """Return the note on the walk, with the top-down rule's result on the same tree and uniform draws."""
        downwards = Rejection().judge(self.draft, self.target, replace(self.context, record_notes=False)).path
        judged = [
            Visit(one.node, one.start, one.weight, self.draws.get(one.node), "accepted" if one is self.judged[-1] else "failed")
            for one in self.judged
        ]
        passed = [Visit(node, None, None, None, "passed") for node in path[-2::-1]]
        return TraversalNote(
            visits=judged + passed,
            rescued=[node for node in path if node not in downwards],
            top_down=len(downwards),
        ).to_note()
