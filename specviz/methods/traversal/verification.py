"""Traversal Verification: a draft tree is verified from the leaves up, so that a good descendant can rescue a weak parent.

Weng et al. (arXiv 2505.12398); on a chain, Block Verification (Sun et al., arXiv 2403.10444). Every node has a weight w and a
residual distribution p. A child is entered with the weight min(1, w p/q) of its token. A leaf is accepted, with the whole path to
the root, with a probability equal to the weight. When a child fails, let S be the mass of [w p - q]+. Then p becomes
norm([w p - q]+), w becomes S / (S + 1 - w), and q becomes the distribution of the next sibling. When all children have failed,
the node is tested like a leaf. The root's weight stays 1.

Invariant, by induction from the leaves: a node entered with weight w, or a descendant, is accepted with probability w over the
draws below. The continuation then has the target's distribution. The rule is therefore exact for children sampled without
replacement, in sampling order. On a chain the rule accepts at least as many tokens on average as top-down verification. On a tree
the rule usually accepts more, too. It may accept less where a leaf was sampled before a sibling with children, since the leaf is
tested first.
Deterministically chosen children count as point masses; acceptance then equals that of top-down verification.

Residuals are float64 on the host, over the drafter's support only: outside the support, a failed child merely rescales p. A draft
vocabulary of 8,000 out of 50,000 tokens thus costs a sixth of the full vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from specviz.acceptance.exact import Match, Rejection, statuses
from specviz.acceptance.tree_probabilities import TreeProbabilities
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.engine.to_device import copy_to_device
from specviz.trace.notes.verdicts import TraversalNote, Visit
from specviz.trace.schema import Note

_NOTHING = 1e-300
"""A mass below this counts as zero."""


class NodeResidual:
    """Residual of one node.

    ``weight``: total mass, the probability of accepting the node if tested now. ``p``: the target's distribution over ``ids``,
    float64 [support]; ``ids`` None: the vocabulary. ``rest``: the target's mass outside ``ids``. ``q``: the drafter's
    distribution; None if the children are point masses.
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
        """Return the initial weight of the child with ``token``: min(1, w p / q)."""
        slot = self._slot(token)
        mass, q = float(self._mass[slot]), 1.0 if self._q is None else float(self._q[slot])
        return min(1.0, mass / q) if q > 0 else float(mass > 0)

    def fail(self, token: int) -> None:
        """Update after the subtree of the child with ``token`` failed.

        Subtracts q from the residual, then removes ``token`` from q and renormalises q. For point masses, the residual loses the
        mass of ``token``.
        """
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
            # The residual is empty, or the child had weight 1, which fails with probability 0.
            self.weight = self._scale = float(self.weight == 1.0)
            self._mass, self._rest = self._p * self._scale, self._outside * self._scale
            return
        self._mass = left / total
        self._rest /= total
        self._scale /= total
        self.weight = owed / total

    def distribution(self, target: Tensor) -> Tensor:
        """Return the unnormalised residual [vocab]. ``target`` [vocab]: the target's distribution at this node."""
        if not self._failed or self.weight == 0:
            return target
        mass = copy_to_device(self._mass, target.device)
        if self._ids is None:
            return mass
        return (target.double() * self._scale).index_copy(0, copy_to_device(self._ids, target.device), mass)


@dataclass
class _Visit:
    """Visit to a node. ``start``: initial weight. ``residual``: None for a leaf. ``tried``: number of children tried so far."""

    node: int
    start: float
    residual: NodeResidual | None = None
    tried: int = 0

    @property
    def weight(self) -> float:
        return self.start if self.residual is None else self.residual.weight


class Traversal:
    """Leaf-to-root verification; at temperature 0, greedy matching.

    ``thresholds`` of the verdict maps each tested node to the weight that was compared with a uniform draw, in order of the
    tests. The nodes above the accepted node on the path are accepted without a test.
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
            # Top-down verification of the same tree with the same uniform draws, for comparison.
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
    """Walk the tree in post-order up to the first node with a uniform draw below the weight, which is accepted.

    Returns the visits that ended, the draws by node, and the nodes whose distributions were read.
    """
    tokens, children = draft.tree.host_tokens, draft.tree.shape.children
    judged, draws, read = list[_Visit](), dict[int, float](), list[int]()

    def enter(node: int, weight: float) -> _Visit:
        # Nothing below a node of weight 0 can be accepted.
        if weight == 0 or not children[node]:
            return _Visit(node, weight)
        read.append(node)
        table = probabilities.table(node)
        assert table.outside is not None
        p, q = table.p.double(), table.q.double() if node in draft.proposals else None
        # A softmax in float32 sums to 1 only approximately; exactness requires normalised p.
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
        # Keyed by round, since a later round may test the same position again.
        draws[visit.node] = context.noise.uniform(ACCEPT, context.round, visit.node)
        if draws[visit.node] < visit.weight:
            return judged, draws, read
        visits.pop()
        above = visits[-1].residual
        assert above is not None
        above.fail(tokens[visit.node])
