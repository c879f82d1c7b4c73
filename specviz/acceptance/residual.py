"""Residual distribution r of the target at a node whose children are rejected one after the other.

After a rejection, r becomes norm((r - q)+), and q loses the rejected child and is renormalised. A deterministically chosen child
counts as a point mass (q = 1). The code stores r unnormalised together with its mass, so that r changes only on the drafter's
support.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specviz.acceptance.tree_probabilities import NodeTable
from specviz.engine.to_device import copy_to_device, to_device
from specviz.trace.notes.verdicts import OverlapPosition

SHOWN = 8
# Support size up to which Python floats are faster than tensors.
_FEW = 64
# Mass below which the running difference is mostly rounding error, so the mass is summed again.
_SMALL = 1e-3


def remaining(target: Tensor, table: NodeTable, sampled: bool) -> Residual:
    """Return the residual at a node.

    ``target``: target distribution [vocab]; ``table``: host copy of both distributions; ``sampled``: whether the children were
    sampled rather than chosen deterministically.
    """
    if not sampled or (table.ids is not None and table.ids.numel() <= _FEW):
        return SparseResidual(target, table, sampled)
    return DenseResidual(target, table)


def _ratio(r: float, mass: float, q: float) -> float:
    if math.isnan(q):  # return NaN, for which the recorder ends the run
        return math.nan
    return min(1.0, r / mass / q) if q > 0 and mass > 0 else float(r > 0)


class SparseResidual:
    """Residual as Python floats on a small support. Without ``sampled``, each child is a point mass."""

    def __init__(self, target: Tensor, table: NodeTable, sampled: bool) -> None:
        assert table.ids is not None
        self._target, self._ids = target, table.ids
        self._slots = {token: slot for slot, token in enumerate(table.ids.tolist())}
        self._r: list[float] = table.p.tolist()
        self._q: list[float] | None = table.q.tolist() if sampled else None
        self._mass = 1.0

    def threshold(self, token: int) -> float:
        """Return min(1, r(token) / q(token))."""
        slot = self._slots[token]
        return _ratio(self._r[slot], self._mass, 1.0 if self._q is None else self._q[slot])

    def reject(self, token: int) -> None:
        """Update r and q after the child ``token`` is rejected."""
        slot, before = self._slots[token], sum(self._r)
        if self._q is None:
            self._r[slot] = 0.0
        else:
            self._r = [max(r - q * self._mass, 0.0) for r, q in zip(self._r, self._q, strict=True)]
            self._q[slot] = 0.0
            total = sum(self._q)
            if total > 0:
                self._q = [q / total for q in self._q]
        self._mass -= before - sum(self._r)
        if self._mass < _SMALL:
            self._mass = float(self._residual().sum(dtype=torch.float64))

    def _residual(self) -> Tensor:
        residual = to_device(self._r, self._target.device, self._target.dtype)
        return self._target.index_copy(0, copy_to_device(self._ids, residual.device), residual)

    def distribution(self) -> Tensor:
        """Return r [vocab], unnormalised, from which the bonus token is drawn.

        Returns the target distribution if r is zero everywhere, which has probability 0 except for rounding errors.
        """
        return self._target if self._mass in (0.0, 1.0) else self._residual()

    def overlap(self, node: int) -> OverlapPosition:
        """Return p and q of the most likely tokens, and sum min(p, q), the acceptance probability of one sampled child."""
        q = self._q or [1.0] * len(self._r)
        rows = sorted(zip(self._slots, self._r, q, strict=True), key=lambda row: -max(row[1], row[2]))[:SHOWN]
        return OverlapPosition(
            node=node,
            tokens=[token for token, _, _ in rows],
            p=[p for _, p, _ in rows],
            q=[share for _, _, share in rows],
            overlap=sum(min(p, share) for p, share in zip(self._r, q, strict=True)),
        )


class DenseResidual:
    """Residual as tensors, over the vocabulary or a large support."""

    def __init__(self, target: Tensor, table: NodeTable) -> None:
        self._target, self._ids = target, table.ids
        self._r, self._q = table.p, table.q.to(target.dtype)
        self._rest = 0.0 if self._ids is None else 1.0 - float(self._r.sum(dtype=torch.float64))
        self._mass = 1.0

    def _slot(self, token: int) -> int:
        return token if self._ids is None else int((self._ids == token).nonzero()[0, 0])

    def threshold(self, token: int) -> float:
        slot = self._slot(token)
        r, q = torch.stack((self._r[slot], self._q[slot])).tolist()
        return _ratio(r, self._mass, q)

    def reject(self, token: int) -> None:
        self._r = (self._r - self._q * self._mass).clamp_min(0.0)
        self._mass = self._rest + float(self._r.sum(dtype=torch.float64))
        if self._mass < _SMALL:
            self._mass = float(self._residual().sum(dtype=torch.float64))
        left = self._q.clone()
        left[self._slot(token)] = 0.0
        self._q = left / left.sum().clamp_min(torch.finfo(left.dtype).tiny)

    def _residual(self) -> Tensor:
        left = copy_to_device(self._r, self._target.device)
        return left if self._ids is None else self._target.index_copy(0, copy_to_device(self._ids, left.device), left)

    def distribution(self) -> Tensor:
        return self._target if self._mass == 0 else self._residual()

    def overlap(self, node: int) -> OverlapPosition:
        places = torch.topk(torch.maximum(self._r, self._q), min(SHOWN, self._r.numel())).indices
        return OverlapPosition(
            node=node,
            tokens=(places if self._ids is None else self._ids[places]).tolist(),
            p=self._r[places].tolist(),
            q=self._q[places].tolist(),
            overlap=float(torch.minimum(self._r, self._q).sum()),
        )


Residual = SparseResidual | DenseResidual
