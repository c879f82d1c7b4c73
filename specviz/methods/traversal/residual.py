"""Residual mass of a node in Traversal Verification after k rejected children.

Everything is kept in float64 on the host and on the drafter's support alone: outside it a failed child changes nothing
but one common factor, so that 8 000 drafted tokens against a vocabulary of 50 000 cost a sixth of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specviz.engine.interfaces import Draft, Proposal, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.to_device import to_device

# A mass below this is what rounding left of a difference that is nothing.
_NOTHING = 1e-300


@dataclass(frozen=True)
class NodeProbabilities:
    """``p`` float64 [support] is the target's distribution at ``ids`` (None: the whole vocabulary), ``rest`` its mass elsewhere.

    ``q`` is the drafter's distribution, None where each of ``ids`` was chosen deterministically and so is a point mass.
    """

    p: Tensor
    rest: float
    q: Tensor | None
    ids: Tensor | None


class NodeResidual:
    """The debt of one node. ``weight`` is its whole mass: the probability that the node itself is accepted now."""

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
        """The weight that the child carrying ``token`` is entered with: min(1, w p / q)."""
        slot = self._slot(token)
        mass, q = float(self._mass[slot]), 1.0 if self._q is None else float(self._q[slot])
        return min(1.0, mass / q) if q > 0 else float(mass > 0)

    def fail(self, token: int) -> None:
        """The child carrying ``token`` failed, and everything below it: subtract its distribution, strike it from the
        drafter's."""
        slot = self._slot(token)
        if self._q is None:
            left = self._mass.clone()
            left[slot] = 0.0
        else:
            left = (self._mass - self._q).clamp_min_(0.0)
            self._strike(slot)
        self._failed = True
        self._settle(left)

    def _settle(self, left: Tensor) -> None:
        owed = float(left.sum()) + self._rest
        total = owed + (1.0 - self.weight)  # in this order a weight of 1 stays exactly 1
        if owed < _NOTHING or total < _NOTHING:
            # Either nothing is owed any more, or the child could not have failed: a branch of probability 0.
            sure = self.weight == 1.0
            self.weight, self._scale = float(sure), float(sure)
            self._mass, self._rest = self._distributions.p * self._scale, self._distributions.rest * self._scale
            return
        self._mass = left / total
        self._rest /= total
        self._scale /= total
        self.weight = owed / total

    def _strike(self, slot: int) -> None:
        assert self._q is not None
        self._q = self._q.clone()
        self._q[slot] = 0.0
        self._q /= self._q.sum().clamp_min(_NOTHING)

    def distribution(self, target: Tensor) -> Tensor:
        """What is owed as a distribution over [vocab], not normalised; ``target`` is the target's own at this node."""
        if not self._failed or self.weight == 0:
            return target
        if self._ids is None:
            return self._mass.to(target.device)
        mass = self._mass.to(target.device)
        return (target.double() * self._scale).index_copy(0, self._ids.to(target.device), mass)


class TreeResiduals:
    """The distributions at the nodes of one scored tree. A GPU is asked once for all of them, a CPU only for those wanted."""

    def __init__(self, draft: Draft, target: TargetPass, warp: Warp) -> None:
        self._draft = draft
        self._logits = target.logits
        self._warp = warp
        self._rows: dict[int, Tensor] = {}
        self._known: dict[int, NodeProbabilities] = {}
        if target.logits.device.type != "cpu":
            self._fetch([node for node, below in enumerate(draft.tree.shape.children) if below])

    def distribution(self, node: int) -> Tensor:
        """The target's warped distribution after ``node``, [vocab]."""
        if node not in self._rows:
            self._rows[node] = self._warp.probabilities(self._logits[node])
        return self._rows[node]

    def at(self, node: int, weight: float) -> NodeResidual:
        """What ``node``, entered with ``weight``, owes before any of its children is tried."""
        if node not in self._known:
            self._fetch([node])
        return NodeResidual(weight, self._known[node])

    def _fetch(self, nodes: Sequence[int]) -> None:
        """Both distributions at ``nodes``, on the support of the drafter's: one copy for all that is on a device."""
        if not nodes:
            return
        rows = self._warp.probabilities(self._logits[list(nodes)])
        self._rows.update(zip(nodes, rows, strict=True))
        proposals = [self._proposal(node) for node in nodes]
        parts: list[Tensor] = []
        for row, proposal in zip(rows, proposals, strict=True):
            parts += _parts(row, proposal)
        flat = torch.cat(parts).cpu().split([part.numel() for part in parts])
        for place, node in enumerate(nodes):
            p, rest, q = flat[3 * place : 3 * place + 3]
            # A softmax in float32 adds up to one only nearly; an exact rule wants a distribution.
            total, ids = p.sum() + rest[0], proposals[place].ids
            drawn = node in self._draft.proposals
            self._known[node] = NodeProbabilities(
                p / total, float(rest / total), q if drawn else None, None if ids is None else ids.cpu()
            )

    def _proposal(self, node: int) -> Proposal:
        """The distribution the children were drawn from; of children chosen deterministically, their tokens alone."""
        proposal = self._draft.proposals.get(node)
        device = self._logits.device
        if proposal is None:
            tree = self._draft.tree
            offered = list(dict.fromkeys(tree.host_tokens[child] for child in tree.shape.children[node]))
            return Proposal(torch.ones(len(offered), device=device), to_device(offered, device))
        return Proposal(proposal.probability.to(device), None if proposal.ids is None else proposal.ids.to(device))


def _parts(row: Tensor, proposal: Proposal) -> list[Tensor]:
    """p on the drafter's support, the mass of p outside it, and q; float64."""
    ids = proposal.ids
    if ids is None:
        return [row.double(), row.new_zeros(1, dtype=torch.float64), proposal.probability.double()]
    outside = row.index_fill(0, ids, 0.0).sum(dtype=torch.float64)
    return [row.index_select(0, ids).double(), outside[None], proposal.probability.double()]
