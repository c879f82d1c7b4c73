"""Gated delta rule along the paths of a tree, in one pass and with no state per node (Yang et al., arXiv 2412.06464).

Per head the state S [key, value] follows ``S[t] = a[t] S[parent(t)] + k[t] u[t]``. The correction ``u[t] = b[t] (v[t] - k[t] a[t]
S[parent(t)])`` corrects the state's value for the key k[t] (of unit length); a[t] = exp(g[t]) is a scalar decay. L and ``fade =
L g`` are as in :mod:`specviz.engine.state_space`; D[t, s] = exp(fade[t] - fade[s]) where s is t or an ancestor of t, else 0.
Unrolling gives a triangular system for all corrections of the tree at once:

    (I + diag(b) (D * K K^T - diag)) U = diag(b) (V - diag(exp(fade)) K S0);      Y = (D * Q K^T) U + diag(exp(fade)) Q S0.

This is the published form for a chunk of text, with an ancestor mask in place of the triangle. A node's correction depends on
its path alone, so a pass's stored activations yield every state on the path without solving again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.state_space import Activations, Carried, convolved, decays
from specviz.engine.tree import TreeShape

_TINY = 1e-6


@dataclass(frozen=True)
class DeltaRule:
    """A layer's constants: ``kernel`` [tap, channel] and ``bias`` [channel] of the convolution over queries, keys and values,
    and the number and sizes of their heads. Several layers of one shape may be stacked in one, as in ``Recurrence``."""

    kernel: Tensor
    bias: Tensor
    key_heads: int
    heads: int
    key_size: int
    size: int

    @property
    def taps(self) -> int:
        return self.kernel.shape[-2]

    def split(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split v [node, channel] into queries and keys [node, head, key size], of unit length, and values [node, head, size]."""
        width = self.key_heads * self.key_size
        q, k, x = v.split([width, width, self.heads * self.size], -1)
        each = self.heads // self.key_heads
        q, k = (part.unflatten(-1, (self.key_heads, -1)) for part in (q, k))
        unit = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + _TINY) for part in (q, k))
        q, k = (part.repeat_interleave(each, -2) for part in unit)
        return q, k, x.unflatten(-1, (self.heads, -1))

    def log_decay(self, activations: Activations) -> Tensor:
        """Logarithm of each node's own decay, [layer, node, head]."""
        return activations.steps

    def replayed(self, activations: Activations, carried: Carried) -> Carried:
        """Return all layers' carried state after the tokens of ``activations`` (one path), from its stored corrections."""
        keys, corrections = (part.unflatten(-1, (self.heads, -1)) for part in activations.written)
        fade = activations.steps.cumsum(-2)
        last = fade[..., -1:, :]
        weighted = (keys * (last - fade).exp()[..., None]).movedim(-3, -1)
        state = torch.addcmul(weighted @ corrections.movedim(-3, -2), last.transpose(-1, -2).exp()[..., None], carried.state)
        window = torch.cat((carried.window, activations.inputs), -2)[..., len(activations) :, :].clone()
        return Carried(window, state)

    def stacked(self, layers: Sequence[DeltaRule]) -> DeltaRule:
        """Stack layers of this shape into one, for :meth:`replayed`."""
        kernel, bias = (torch.stack([getattr(layer, name) for layer in layers]) for name in ("kernel", "bias"))
        return replace(self, kernel=kernel, bias=bias)


def tree_delta(
    layer: DeltaRule, inputs: Tensor, log_decay: Tensor, rate: Tensor, window: Tensor, state: Tensor, shape: TreeShape
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return y [node, head, size] of every node of a tree after one layer's carried window and state, and the pass's writes.

    ``inputs`` [node, channel] are the convolution's inputs; ``log_decay`` (g) and ``rate`` (b) are [node, head]. The writes are
    keys [node, head * key size] and corrections [node, head * size].
    """
    queries, keys, values = layer.split(convolved(layer, inputs, window, shape))
    ancestors = shape.ancestors_on(inputs.device)
    fade = ancestors.to(log_decay.dtype) @ log_decay
    left = decays(fade, ancestors)
    q, k, v = (part.transpose(0, 1) for part in (queries * layer.key_size**-0.5, keys, values))
    before, b = fade.T.exp()[..., None], rate.T[..., None]
    system = torch.tril(b * (k @ k.transpose(-1, -2)) * left, -1)  # its diagonal of ones is implied
    corrections = torch.linalg.solve_triangular(system, b * (v - before * (k @ state)), upper=False, unitriangular=True)
    y = torch.addcmul((q @ k.transpose(-1, -2) * left) @ corrections, before, q @ state)
    return y.transpose(0, 1), (keys.flatten(-2), corrections.transpose(0, 1).flatten(-2))


def gated_norm(y: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMS norm over a head's size, then the gate: [node, head, size]."""
    return F.rms_norm(y, (y.shape[-1],), None, eps) * weight * F.silu(gate)
