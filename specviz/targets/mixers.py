"""Recurrent mixers of transformers models on trees: Mamba-2, and the gated delta rule of Qwen3-Next and Qwen3.5.

A mixer reads the output of the layer's norm, [node, hidden], and runs along each path of the tree from the carried window and
state. It returns activations for a replay of the accepted path. The recurrence is computed in at least float32.

The gated delta rule (Yang et al., arXiv 2412.06464) runs along all paths in one pass, without a state per node. Per head, the
state S [key, value] follows ``S[t] = a[t] S[parent(t)] + k[t] u[t]``. Here a[t] = exp(g[t]) is a scalar decay, and k[t] has unit
length. The correction is ``u[t] = b[t] (v[t] - k[t] a[t] S[parent(t)])``. L and ``fade = L g`` are as in
:mod:`specviz.engine.state_space`; D[t, s] = exp(fade[t] - fade[s]) where s is t or an ancestor of t, else 0. Unrolling gives a
triangular system for all corrections at once:

    (I + diag(b) (D * K K^T - diag)) U = diag(b) (V - diag(exp(fade)) K S0);      Y = (D * Q K^T) U + diag(exp(fade)) Q S0.

This is the published form for a chunk of text, with an ancestor mask in place of the causal one. A node's correction depends only
on its path, so stored activations yield each state on the path without solving again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.state_space import Activations, Carried, Convolution, Recurrence, convolve, decays, tree_scan
from specviz.engine.tree import TreeShape

_TINY = 1e-6


@dataclass(frozen=True)
class DeltaRule(Convolution):
    """Constants of a layer: the convolution over queries, keys and values, and the number and sizes of their heads."""

    key_heads: int
    heads: int
    key_size: int
    size: int

    def split(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split v [node, channel] into queries and keys of unit length [node, head, key size], and values [node, head, size]."""
        width = self.key_heads * self.key_size
        q, k, x = v.split([width, width, self.heads * self.size], -1)
        each = self.heads // self.key_heads
        q, k = (part.unflatten(-1, (self.key_heads, -1)) for part in (q, k))
        unit = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + _TINY) for part in (q, k))
        q, k = (part.repeat_interleave(each, -2) for part in unit)
        return q, k, x.unflatten(-1, (self.heads, -1))

    def writes(self, activations: Activations, carried: Carried, fade: Tensor) -> Tensor:
        """See :meth:`Convolution.writes`; computed from the path's stored corrections."""
        keys, corrections = (part.unflatten(-1, (self.heads, -1)) for part in activations.written)
        return (keys * fade[..., None]).movedim(-3, -1) @ corrections.movedim(-3, -2)


def tree_delta(
    layer: DeltaRule, inputs: Tensor, log_decay: Tensor, rate: Tensor, window: Tensor, state: Tensor, shape: TreeShape
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the outputs y [node, head, size] of a tree after a layer's carried window and state, and the pass's writes.

    ``inputs`` [node, channel]: inputs of the convolution. ``log_decay`` (g) and ``rate`` (b): [node, head]. The writes are keys
    [node, head * key size] and corrections [node, head * size].
    """
    queries, keys, values = layer.split(convolve(layer, inputs, window, shape))
    ancestors = shape.ancestors_on(inputs.device)
    fade = ancestors.to(log_decay.dtype) @ log_decay
    left = decays(fade, ancestors)
    q, k, v = (part.transpose(0, 1) for part in (queries * layer.key_size**-0.5, keys, values))
    before, b = fade.T.exp()[..., None], rate.T[..., None]
    system = torch.tril(b * (k @ k.transpose(-1, -2)) * left, -1)  # solve_triangular implies the diagonal of ones
    corrections = torch.linalg.solve_triangular(system, b * (v - before * (k @ state)), upper=False, unitriangular=True)
    y = torch.addcmul((q @ k.transpose(-1, -2) * left) @ corrections, before, q @ state)
    return y.transpose(0, 1), (keys.flatten(-2), corrections.transpose(0, 1).flatten(-2))


Rule = Recurrence | DeltaRule


class Mixer(ABC):
    """Mixer of one layer.

    ``rule``: constants of the layer. ``channels``: number of channels of the convolution. ``state``: shape of a state.
    """

    rule: Rule
    channels: int
    state: tuple[int, int, int]

    def __init__(self, module: Any, dtype: torch.dtype) -> None:
        self.module = module
        self.dtype = dtype
        self.wide = torch.promote_types(dtype, torch.float32)

    @abstractmethod
    def __call__(self, inner: Tensor, window: Tensor, state: Tensor, shape: TreeShape) -> tuple[Tensor, Activations]:
        """Return the output [node, hidden] for inner [node, hidden], and the activations without an axis ``layer``."""


class Mamba2(Mixer):
    """Mamba-2 (arXiv 2405.21060), also used by Bamba and Granite."""

    def __init__(self, module: Any, dtype: torch.dtype) -> None:
        super().__init__(module, dtype)
        kernel, bias = _convolution(module, self.wide)
        rate, skip = -torch.exp(module.A_log.detach().to(self.wide)), module.D.detach().to(self.wide)
        self.rule: Recurrence = Recurrence(kernel, bias, rate, skip, module.n_groups, module.ssm_state_size)
        self.channels = module.conv_dim
        self.state = (module.num_heads, module.head_dim, module.ssm_state_size)

    def __call__(self, inner: Tensor, window: Tensor, state: Tensor, shape: TreeShape) -> tuple[Tensor, Activations]:
        mixer, wide = self.module, self.wide
        split_sizes = [mixer.intermediate_size, mixer.conv_dim, mixer.num_heads]
        gate, u, raw = mixer.in_proj(inner).to(wide).split(split_sizes, -1)
        step = F.softplus(raw + mixer.dt_bias.to(wide)).clamp(*mixer.time_step_limit)
        y = tree_scan(self.rule, u, step, window, state, shape)
        gated = (y.flatten(-2) * F.silu(gate)).unflatten(-1, (mixer.n_groups, -1))
        norm = mixer.norm
        even = F.rms_norm(gated, (gated.shape[-1],), None, norm.variance_epsilon).flatten(-2)
        return mixer.out_proj(norm.weight * even.to(self.dtype)), Activations(u, step)


class GatedDelta(Mixer):
    """Gated DeltaNet (arXiv 2412.06464) in Qwen3-Next and Qwen3.5, which pack their projections differently."""

    def __init__(self, module: Any, dtype: torch.dtype) -> None:
        super().__init__(module, dtype)
        kernel, bias = _convolution(module, self.wide)
        self.rule: DeltaRule = DeltaRule(
            kernel, bias, module.num_k_heads, module.num_v_heads, module.head_k_dim, module.head_v_dim
        )
        self.channels = module.conv_dim
        self.state = (module.num_v_heads, module.head_k_dim, module.head_v_dim)
        self._rate = -torch.exp(module.A_log.detach().to(self.wide))

    def __call__(self, inner: Tensor, window: Tensor, state: Tensor, shape: TreeShape) -> tuple[Tensor, Activations]:
        mixer, wide = self.module, self.wide
        u, gate, b, a = (part.to(wide) for part in self._projected(inner))
        log_decay = self._rate * F.softplus(a + mixer.dt_bias.to(wide))
        y, written = tree_delta(self.rule, u, log_decay, b.sigmoid(), window, state, shape)
        norm = mixer.norm
        even = F.rms_norm(y, (y.shape[-1],), None, norm.variance_epsilon)  # over a head's size
        gated = even * norm.weight.to(wide) * F.silu(gate.unflatten(-1, (self.rule.heads, -1)))
        return mixer.out_proj(gated.flatten(-2).to(self.dtype)), Activations(u, log_decay, written)

    def _projected(self, inner: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the convolution's input [node, channel], the gate [node, head * size], and raw rates and decays [node, head]."""
        mixer = self.module
        if hasattr(mixer, "in_proj_qkv"):
            return mixer.in_proj_qkv(inner), mixer.in_proj_z(inner), mixer.in_proj_b(inner), mixer.in_proj_a(inner)
        # Interleaved by key head: query, key, then the values and gates of the head's group.
        each, keys, width = mixer.num_v_heads // mixer.num_k_heads, mixer.head_k_dim, mixer.head_v_dim
        whole = mixer.in_proj_qkvz(inner).unflatten(-1, (mixer.num_k_heads, -1))
        q, k, v, z = whole.split([keys, keys, each * width, each * width], -1)
        b, a = mixer.in_proj_ba(inner).unflatten(-1, (mixer.num_k_heads, -1)).split([each, each], -1)
        u = torch.cat([part.flatten(-2) for part in (q, k, v)], -1)
        return u, z.flatten(-2), b.flatten(-2), a.flatten(-2)


def _convolution(module: Any, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return kernel [tap, channel], the node's own input first (in transformers, last), and bias [channel]."""
    kernel = module.conv1d.weight.detach()[:, 0].to(wide).flip(-1).T.contiguous()
    bias = module.conv1d.bias
    return kernel, torch.zeros_like(kernel[0]) if bias is None else bias.detach().to(wide)
