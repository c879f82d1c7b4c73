"""Residual mass of a node in Traversal Verification after k rejected children.

Everything is float64 on the host, on the drafter's support alone: outside the support a rejected child only rescales p by a
common factor. So a draft vocabulary of 8,000 out of 50,000 tokens costs a sixth of the full vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from specviz.acceptance.tree_probabilities import TreeProbabilities
from specviz.engine.interfaces import Draft, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.to_device import copy_to_device

# A mass below this counts as zero.
_NOTHING = 1e-300


@dataclass(frozen=True)
class NodeProbabilities:
    """``p`` float64 [support] is the target's distribution at ``ids`` (None: the whole vocabulary), ``rest`` its mass elsewhere.

    ``q`` is the drafter's distribution; None if ``ids`` were chosen deterministically, so that each is a point mass.
    """

    p: Tensor
    rest: float
    q: Tensor | None
    ids: Tensor | None


class NodeResidual:
    """Residual of one node. ``weight`` is its total mass: the probability that the node itself is accepted now."""

    def __init__(self, weight: float, distributions: NodeProbabilities) -> None:
        self.weight = weight
        self._distributions = distributions
        self._q = distributions.q
        self._ids = distributions.ids
        self._mass = distributions.p * weight
        self._rest = distributions.rest * weight
        self._scale = weight
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
            sure = self.weight == 1.0
            self.weight, self._scale = float(sure), float(sure)
            self._mass, self._rest = self._distributions.p * self._scale, self._distributions.rest * self._scale
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


class TreeResiduals:
    """Residuals of the nodes of one scored tree."""

    def __init__(self, draft: Draft, target: TargetPass, warp: Warp) -> None:
        self._draft = draft
        self._probabilities = TreeProbabilities(draft, target, warp, outside=True)

    def distribution(self, node: int) -> Tensor:
        """Return the target's warped distribution after ``node``, [vocab]."""
        return self._probabilities.row(node)

    def at(self, node: int, weight: float) -> NodeResidual:
        """Return the residual of ``node``, entered with ``weight``, before any child is tried."""
        table = self._probabilities.table(node)
        p, q = table.p.double(), table.q.double()
        assert table.outside is not None
        # A softmax in float32 sums to 1 only approximately; an exact rule requires a distribution.
        total = p.sum() + table.outside
        drawn = node in self._draft.proposals
        return NodeResidual(weight, NodeProbabilities(p / total, float(table.outside / total), q if drawn else None, table.ids))
