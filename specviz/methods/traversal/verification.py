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

Residuals are float64 on the host, on the drafter's support alone: outside the support a rejected child only rescales p by a
common factor. So a draft vocabulary of 8,000 out of 50,000 tokens costs a sixth of the full vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from specviz.acceptance.match import Match, statuses
from specviz.acceptance.rejection import Rejection
from specviz.acceptance.tree_probabilities import TreeProbabilities
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.engine.to_device import copy_to_device
from specviz.trace.notes.verdicts import TraversalNote, Visit
from specviz.trace.schema import Note

_NOTHING = 1e-300
"""A mass below this counts as zero."""


class NodeResidual:
    """Residual of one node. ``weight`` is its total mass: the probability that the node itself is accepted now.

    ``p`` float64 [support] is the target's distribution at ``ids`` (None: the whole vocabulary), ``rest`` its mass elsewhere.
    ``q`` is the drafter's distribution; None if ``ids`` were chosen deterministically, so that each is a point mass.
    """

    def __init__(self, weight: float, p: Tensor, rest: float, q: Tensor | None, ids: Tensor | None) -> None:
        self.weight = weight
        self._p, self._outside, self._q, self._ids = p, rest, q, ids
        self._mass, self._rest, self._scale = p * weight, rest * weight, weight
        self._failed = False

    @cached_property
    def _slots(self) -> dict[int, int] | None:
        if self._ids is None or self._ids.numel() > 64:
            return None
        return {token: slot for slot, token in enumerate(self._ids.tolist())}

    def _slot(self, token: int) -> int:
        if self._ids is None:
            return token
        if self._slots is not None:
            return self._slots[token]
        return int((self._ids == token).nonzero()[0, 0])

    def weight_of(self, token: int) -> float:
        """Return the initial weight of the child carrying ``token``: min(1, w p / q)."""
        slot = self._slot(token)
        mass, q = float(self._mass[slot]), 1.0 if self._q is None else float(self._q[slot])
        return min(1.0, mass / q) if q > 0 else float(mass > 0)

    def fail(self, token: int) -> None:
        """Update after the child carrying ``token`` and its subtree failed: subtract the drafter's distribution from the
        residual, then remove the child's token from the drafter's distribution and renormalise it (a point-mass child simply
        loses its mass)."""
        slot = self._slot(token)
        if self._q is None:
            left = self._mass.clone()
            left[slot] = 0.0
        else:
            left = (self._mass - self._q).clamp_min_(0.0)
            self._q = self._q.clone()
            self._q[slot] = 0.0
            self._q /= self._q.sum().clamp_min(_NOTHING)
        self._failed = True
        self._settle(left)

    def _settle(self, left: Tensor) -> None:
        owed = float(left.sum()) + self._rest
        total = owed + (1.0 - self.weight)  # in this order, a weight of 1 stays exactly 1
        if owed < _NOTHING or total < _NOTHING:
            # Either the residual is empty, or the child had weight 1 and fails with probability 0.
            self.weight = self._scale = float(self.weight == 1.0)
            self._mass, self._rest = self._p * self._scale, self._outside * self._scale
            return
        self._mass = left / total
        self._rest /= total
        self._scale /= total
        self.weight = owed / total

    def distribution(self, target: Tensor) -> Tensor:
        """Return the unnormalised residual over [vocab]; ``target`` is the target's own distribution at this node."""
        if not self._failed or self.weight == 0:
            return target
        mass = copy_to_device(self._mass, target.device)
        if self._ids is None:
            return mass
        return (target.double() * self._scale).index_copy(0, copy_to_device(self._ids, target.device), mass)


@dataclass
class _Visit:
    """A current or past node of the walk: its initial weight, its residual (None for a leaf), and the number of children tried
    so far."""

    node: int
    start: float
    residual: NodeResidual | None = None
    tried: int = 0

    @property
    def weight(self) -> float:
        return self.start if self.residual is None else self.residual.weight


class Traversal:
    """Leaf-to-root verification. At temperature 0 both distributions are point masses and the rule is plain greedy matching.

    A verdict's ``thresholds`` are the weights compared with uniform draws, in the order of the visits: the failed nodes, then the
    accepted one if it is not the root. Nodes above it on the path were accepted without a uniform draw.
    """

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        if context.warp.greedy:
            return Match().judge(draft, target, context)
        shape, probabilities = draft.tree.shape, TreeProbabilities(draft, target, context.warp, outside=True)
        judged, draws, read = _walk(draft, probabilities, context)
        end = judged[-1]
        path = shape.path(end.node)[1:]
        bonus = probabilities.row(end.node)
        if end.residual is not None:
            bonus = end.residual.distribution(bonus)  # not normalised

        def note() -> list[Note]:
            # The top-down rule's result on the same tree and uniform draws.
            downwards = Rejection().judge(draft, target, replace(context, record_notes=False)).path
            visits = [Visit(one.node, one.start, one.weight, draws.get(one.node), "failed") for one in judged]
            visits[-1] = visits[-1].replace(outcome="accepted")
            visits += [Visit(node, None, None, None, "passed") for node in path[-2::-1]]
            rescued = [node for node in path if node not in downwards]
            return [TraversalNote(visits, rescued, len(downwards)).to_note()] if len(shape) > 1 else []

        return Verdict(
            rule="traversal",
            path=path,
            bonus=draw(bonus, context.noise, context.position + 1 + len(path)),
            source="residual" if end.tried else "target",
            statuses=statuses(shape, path, list(draws)),
            visited=(*(node for node in read if node != end.node), end.node),
            thresholds={visit.node: visit.weight for visit in judged if visit.node},
            draws=draws,
            certain=not draft.proposals,
            notes=context.notes(note),
        )


def _walk(
    draft: Draft, probabilities: TreeProbabilities, context: Context
) -> tuple[list[_Visit], dict[int, float], list[int]]:  # fmt: skip
    """Walk the tree in post-order to the first node whose uniform draw falls below its weight. Return the visits up to that node,
    the draws by node, and the nodes whose target row was read."""
    tokens, children = draft.tree.host_tokens, draft.tree.shape.children
    judged, draws, read = list[_Visit](), dict[int, float](), list[int]()

    def enter(node: int, weight: float) -> _Visit:
        # Children of a node of weight 0 are skipped, since no node below it can be accepted.
        if weight == 0 or not children[node]:
            return _Visit(node, weight)
        read.append(node)
        table = probabilities.table(node)
        assert table.outside is not None
        p, q = table.p.double(), table.q.double() if node in draft.proposals else None
        # A softmax in float32 sums to 1 only approximately; an exact rule requires a distribution.
        total = p.sum() + table.outside
        return _Visit(node, weight, NodeResidual(weight, p / total, float(table.outside / total), q, table.ids))

    visits = [enter(0, 1.0)]
    while True:
        visit = visits[-1]
        if visit.residual is not None and visit.tried < len(children[visit.node]):
            child = children[visit.node][visit.tried]
            visit.tried += 1
            visits.append(enter(child, visit.residual.weight_of(tokens[child])))
            continue
        judged.append(visit)
        if visit.node == 0:
            return judged, draws, read
        # Keyed by round too: a later round may test a position again, with a fresh uniform draw.
        draws[visit.node] = context.noise.uniform(ACCEPT, context.round, visit.node)
        if draws[visit.node] < visit.weight:
            return judged, draws, read
        visits.pop()
        above = visits[-1].residual
        assert above is not None
        above.fail(tokens[visit.node])
