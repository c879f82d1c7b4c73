"""Mamba-2 recurrence along the paths of a tree, in one pass and without a state per node (Wu et al., arXiv 2505.14969).

Per head, the state follows ``h[t] = a[t] h[parent(t)] + dt[t] x[t] B[t]`` with a scalar ``a[t] = exp(dt[t] A)``, A < 0. The
decay of a path is the exponential of a sum along the path. Let L[t, s] = 1 where s is t or an ancestor of t, and
``fade = L (dt A)``. Unrolling gives the outputs of all nodes at once:

    Y = (where(L, exp(fade[t] - fade[s]), 0) * C B^T) diag(dt) X + diag(exp(fade)) C h0^T + D X

Axis names: ``node`` (root first), ``head``, ``size`` (of a head), ``group``, ``state``, ``layer`` when several layers are
processed at once; of the convolution, ``channel`` and ``tap`` (the node's own input first).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.to_device import to_device
from specviz.engine.tree import GrownShape, TreeShape, chain


@dataclass(frozen=True)
class Convolution(ABC):
    """Convolution of a layer, before the recurrence: ``kernel`` [tap, channel], ``bias`` [channel].

    Layers of the same shape may be stacked into one object, whose tensors then start with an axis ``layer``.
    """

    kernel: Tensor
    bias: Tensor

    @property
    def taps(self) -> int:
        return self.kernel.shape[-2]

    def stacked(self, layers: Sequence[Self]) -> Self:
        """Stack layers of this shape into one, for the replay."""
        names = [name for name, value in vars(self).items() if isinstance(value, Tensor)]
        return replace(self, **{name: torch.stack([getattr(layer, name) for layer in layers]) for name in names})

    def log_decay(self, activations: Activations) -> Tensor:
        """Log decay [layer, node, head] of each node; by default, the activations' steps."""
        return activations.steps

    @abstractmethod
    def writes(self, activations: Activations, carried: Carried, fade: Tensor) -> Tensor:
        """Sum of a path's writes into the state [layer, head, size, state], each decayed by ``fade`` [layer, node, head]."""

    def replayed(self, activations: Activations, carried: Carried) -> Carried:
        """Return the carried state after the tokens of ``activations`` (one path), in closed form and for all layers."""
        fade = self.log_decay(activations).cumsum(-2)
        last = fade[..., -1:, :]
        written = self.writes(activations, carried, (last - fade).exp())
        state = torch.addcmul(written, last.transpose(-1, -2).exp()[..., None], carried.state)
        window = torch.cat((carried.window, activations.inputs), -2)[..., len(activations) :, :].clone()
        return Carried(window, state)


@dataclass(frozen=True)
class Recurrence(Convolution):
    """Constants of a layer: the convolution, ``rate`` (A) and ``skip`` (D) [head]."""

    rate: Tensor
    skip: Tensor
    groups: int
    state: int

    @property
    def heads(self) -> int:
        return self.rate.shape[-1]

    def split(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split v [node, channel] into x [node, head, size], B and C [node, group, state]."""
        side = self.groups * self.state
        x, b, c = v.split([v.shape[-1] - 2 * side, side, side], -1)
        group_shape = (self.groups, self.state)
        return x.unflatten(-1, (self.heads, -1)), b.unflatten(-1, group_shape), c.unflatten(-1, group_shape)

    def log_decay(self, activations: Activations) -> Tensor:
        return activations.steps * self.rate.unsqueeze(-2)

    def writes(self, activations: Activations, carried: Carried, fade: Tensor) -> Tensor:
        x, b, _ = self.split(convolve(self, activations.inputs, carried.window, chain(len(activations) - 1)))
        weighted = (x * (fade * activations.steps)[..., None]).movedim(-3, -1).unflatten(-3, (self.groups, -1))
        return (weighted @ b.transpose(-3, -2).unsqueeze(-3)).flatten(-4, -3)


@dataclass(frozen=True)
class Carried:
    """State carried between rounds.

    ``window`` [layer, tap - 1, channel]: last inputs of the convolution, oldest first. ``state``: [layer, head, size, state].
    """

    window: Tensor
    state: Tensor

    def put(self, other: Carried) -> None:
        """Copy ``other`` to the addresses of this state."""
        self.window.copy_(other.window)
        self.state.copy_(other.state)


@dataclass(frozen=True)
class Activations:
    """Activations of a pass, stored for the replay.

    ``inputs`` [layer, node, channel]: inputs of the convolution. ``steps`` [layer, node, head]: time steps, or log decays of a
    delta rule. ``written``: factors of each node's write into the state, if ``inputs`` do not determine them.
    """

    inputs: Tensor
    steps: Tensor
    written: tuple[Tensor, ...] = ()

    def of(self, nodes: Tensor) -> Activations:
        """Select ``nodes`` (int64)."""
        return _activations([part.index_select(-2, nodes) for part in self.parts])

    def part(self, start: int, end: int) -> Activations:
        """Select the nodes from ``start`` up to, not including, ``end``."""
        return _activations([part[..., start:end, :] for part in self.parts])

    def __len__(self) -> int:
        return self.inputs.shape[-2]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors; their second-to-last axis is ``node``."""
        return (self.inputs, self.steps, *self.written)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return sum(part.nbytes for part in self.parts)


def _activations(parts: Sequence[Tensor]) -> Activations:
    return Activations(parts[0], parts[1], tuple(parts[2:]))


def stack_layers(layers: Sequence[Activations]) -> Activations:
    """Stack single layers along a new axis ``layer``."""
    return _activations([torch.stack(parts) for parts in zip(*(layer.parts for layer in layers), strict=True)])


def sources_of(shape: TreeShape, taps: int, device: torch.device) -> Tensor:
    """Index into the concatenated window and inputs for each tap, int64 [node, tap]: the node, its ancestors, then the window."""

    def made() -> Tensor:
        parents = shape.parents_on_device if isinstance(shape, GrownShape) else to_device(shape.parents, device)
        at, rows = torch.arange(len(shape), device=device), []
        for _ in range(taps):
            rows.append(at + (taps - 1))
            # -1, -2, … are the window's inputs, newest first.
            at = torch.where(at < 0, at - 1, parents.index_select(0, at.clamp_min(0)))
        return torch.stack(rows, 1)

    return shape.cached((device, taps), made)


def convolve(layer: Convolution, inputs: Tensor, window: Tensor, shape: TreeShape) -> Tensor:
    """Convolve along each node's path and apply the activation: [node, channel]."""
    sources = sources_of(shape, layer.taps, inputs.device)
    everything = torch.cat((window, inputs), -2)
    windows = everything.index_select(-2, sources.flatten()).unflatten(-2, sources.shape)
    return F.silu((windows * layer.kernel.unsqueeze(-3)).sum(-2) + layer.bias.unsqueeze(-2))


def decays(fade: Tensor, ancestors: Tensor) -> Tensor:
    """Decay [head, t, s] of node s's write at node t; 0 where s is neither t nor an ancestor of t.

    The mask precedes the exponential, because between two branches the difference may be large and positive.
    """
    fade = fade.T
    return (fade[:, :, None] - fade[:, None, :]).masked_fill(~ancestors, -math.inf).exp()


def tree_scan(layer: Recurrence, inputs: Tensor, steps: Tensor, window: Tensor, state: Tensor, shape: TreeShape) -> Tensor:
    """Return the outputs y [node, head, size] of a tree after a layer's carried window and state, in one pass."""
    x, b, c = layer.split(convolve(layer, inputs, window, shape))
    ancestors = shape.ancestors_on(inputs.device)
    fade = ancestors.to(steps.dtype) @ (steps * layer.rate)  # log decay from the carried state to each node
    group_shape = (layer.groups, -1)
    b, c = b.transpose(0, 1), c.transpose(0, 1)
    alike = (c @ b.transpose(-1, -2)).unsqueeze(1)
    mixed = (decays(fade, ancestors).unflatten(0, group_shape) * alike).flatten(0, 1)
    within = mixed @ (x * steps[..., None]).transpose(0, 1)
    before = (c.unsqueeze(1) @ state.unflatten(0, group_shape).transpose(-1, -2)).flatten(0, 1)
    return torch.addcmul(within, before, fade.T.exp()[..., None]).transpose(0, 1) + layer.skip[:, None] * x
