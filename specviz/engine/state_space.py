"""Mamba-2 recurrence along the paths of a tree, in one pass and with no state per node (Wu et al., arXiv 2505.14969).

Per head the state follows ``h[t] = a[t] h[parent(t)] + dt[t] x[t] B[t]`` with a scalar ``a[t] = exp(dt[t] A)``, A < 0. A path's
decay is therefore the exponential of a sum along the path. With L[t, s] = 1 where s is t or an ancestor of t and ``fade = L (dt
A)``, unrolling gives all nodes at once:

    Y = (where(L, exp(fade[t] - fade[s]), 0) * C B^T) diag(dt) X + diag(exp(fade)) C h0^T + D X

Axis names: ``node`` (root first), ``head``, ``size`` (of a head), ``group``, ``state``, ``channel`` (of the convolution);
``tap`` (of its kernel, a node's own input first), ``layer`` where many layers are worked on at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.to_device import copy_to_device
from specviz.engine.tree import GrownShape, TreeShape, chain


@dataclass(frozen=True)
class Recurrence:
    """A layer's fixed numbers: ``kernel`` [tap, channel], ``bias`` [channel], ``rate`` (A) and ``skip`` (D) [head].

    Several layers of one shape may stand in one, each tensor with a first axis ``layer``.
    """

    kernel: Tensor
    bias: Tensor
    rate: Tensor
    skip: Tensor
    groups: int
    state: int

    @property
    def heads(self) -> int:
        return self.rate.shape[-1]

    @property
    def taps(self) -> int:
        return self.kernel.shape[-2]

    def split(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """v [node, channel] to x [node, head, size], B and C [node, group, state]."""
        side = self.groups * self.state
        x, b, c = v.split([v.shape[-1] - 2 * side, side, side], -1)
        group_shape = (self.groups, self.state)
        return x.unflatten(-1, (self.heads, -1)), b.unflatten(-1, group_shape), c.unflatten(-1, group_shape)

    def log_decay(self, activations: Activations) -> Tensor:
        """[layer, node, head]: the logarithm of each node's own decay."""
        return activations.steps * self.rate.unsqueeze(-2)

    def replayed(self, activations: Activations, carried: Carried) -> Carried:
        """What all layers carry on after the tokens of ``activations``, one path: the closed form, no state in between."""
        return replayed(self, activations, carried)

    def stacked(self, layers: Sequence[Recurrence]) -> Recurrence:
        """Layers of this shape as one, for :meth:`replayed`."""
        return stacked(layers)


def stacked(layers: Sequence[Recurrence]) -> Recurrence:
    """Layers of one shape as one, for :func:`replayed`."""
    first = layers[0]
    return Recurrence(
        torch.stack([layer.kernel for layer in layers]),
        torch.stack([layer.bias for layer in layers]),
        torch.stack([layer.rate for layer in layers]),
        torch.stack([layer.skip for layer in layers]),
        first.groups,
        first.state,
    )


class Convolution(Protocol):
    """What the convolution before a recurrence needs of a layer."""

    @property
    def kernel(self) -> Tensor: ...

    @property
    def bias(self) -> Tensor: ...

    @property
    def taps(self) -> int: ...


@dataclass(frozen=True)
class Carried:
    """What goes from one round to the next: ``window`` [layer, tap - 1, channel], the convolution's last inputs, oldest
    first, and ``state`` [layer, head, size, state]."""

    window: Tensor
    state: Tensor


@dataclass(frozen=True)
class Activations:
    """What a pass leaves for the replay: the convolution's inputs [layer, node, channel], time steps [layer, node, head], for a
    delta rule its log decays; and the factors of what each node wrote into the state, where inputs do not give them."""

    inputs: Tensor
    steps: Tensor
    written: tuple[Tensor, ...] = ()

    def of(self, nodes: Tensor) -> Activations:
        """Those of ``nodes`` (int64) alone."""
        return _activations([part.index_select(-2, nodes) for part in self.parts])

    def part(self, start: int, end: int) -> Activations:
        """Those of consecutive nodes."""
        return _activations([part[..., start:end, :] for part in self.parts])

    def __len__(self) -> int:
        return self.inputs.shape[-2]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All of them, nodes on the last axis but one."""
        return (self.inputs, self.steps, *self.written)

    @property
    def bytes(self) -> int:
        """What they take of memory."""
        return sum(part.numel() * part.element_size() for part in self.parts)


def _activations(parts: Sequence[Tensor]) -> Activations:
    return Activations(parts[0], parts[1], tuple(parts[2:]))


def joined(pieces: Sequence[Activations]) -> Activations:
    """One path's after another's."""
    return _activations([torch.cat(parts, -2) for parts in zip(*(piece.parts for piece in pieces), strict=True)])


def layered(layers: Sequence[Activations]) -> Activations:
    """Those of single layers together."""
    return _activations([torch.stack(parts) for parts in zip(*(layer.parts for layer in layers), strict=True)])


@lru_cache(maxsize=256)
def convolution_sources(parents: tuple[int, ...], taps: int) -> Tensor:
    """int64 [node, tap]: the row of window and inputs, end to end, that a tap reads: the node, its ancestors, the window."""
    rows = []
    for node in range(len(parents)):
        row, at, older = [], node, 0
        for _ in range(taps):
            older += at < 0
            row.append(taps - 1 + at if at >= 0 else taps - 1 - older)
            at = parents[at] if at >= 0 else -1
        rows.append(row)
    return torch.tensor(rows)


def sources_of(shape: TreeShape, taps: int, device: torch.device) -> Tensor:
    """:func:`convolution_sources` of a shape on ``device``."""

    def copied() -> Tensor:
        return copy_to_device(convolution_sources(shape.parents, taps), device)

    def grown() -> Tensor:
        assert isinstance(shape, GrownShape)
        at, rows = torch.arange(len(shape), device=device), []
        for _ in range(taps):
            rows.append(at + (taps - 1))
            # Above the root come -1, -2, …: the window's inputs, newest first.
            at = torch.where(at < 0, at - 1, shape.parents_there.index_select(0, at.clamp_min(0)))
        return torch.stack(rows, 1)

    return shape.keeping((device, taps), grown if isinstance(shape, GrownShape) else copied)


def convolved(layer: Convolution, inputs: Tensor, window: Tensor, shape: TreeShape) -> Tensor:
    """The convolution along each node's own path, behind its activation: [node, channel]."""
    sources = sources_of(shape, layer.taps, inputs.device)
    everything = torch.cat((window, inputs), -2)
    windows = everything.index_select(-2, sources.flatten()).unflatten(-2, sources.shape)
    return F.silu((windows * layer.kernel.unsqueeze(-3)).sum(-2) + layer.bias.unsqueeze(-2))


def decays(fade: Tensor, ancestors: Tensor) -> Tensor:
    """[head, node, node]: how much of what node s wrote is left at node t; 0 where s is no ancestor of t.

    Masked before the exponential: between two branches the difference may be positive and as large as it likes.
    """
    fade = fade.T
    return (fade[:, :, None] - fade[:, None, :]).masked_fill(~ancestors, -math.inf).exp()


def tree_scan(layer: Recurrence, inputs: Tensor, steps: Tensor, window: Tensor, state: Tensor, shape: TreeShape) -> Tensor:
    """y [node, head, size] of every node of a tree behind one layer's carried window and state, in one pass."""
    x, b, c = layer.split(convolved(layer, inputs, window, shape))
    ancestors = shape.ancestors_on(inputs.device)
    fade = ancestors.to(steps.dtype) @ (steps * layer.rate)  # the logarithm of the decay from the carried state to each node
    group_shape = (layer.groups, -1)
    b, c = b.transpose(0, 1), c.transpose(0, 1)
    alike = (c @ b.transpose(-1, -2)).unsqueeze(1)
    mixed = (decays(fade, ancestors).unflatten(0, group_shape) * alike).flatten(0, 1)
    within = mixed @ (x * steps[..., None]).transpose(0, 1)
    before = (c.unsqueeze(1) @ state.unflatten(0, group_shape).transpose(-1, -2)).flatten(0, 1)
    return torch.addcmul(within, before, fade.T.exp()[..., None]).transpose(0, 1) + layer.skip[:, None] * x


def replayed(layers: Recurrence, activations: Activations, carried: Carried) -> Carried:
    """What all layers carry on after the tokens of ``activations``, one path: the closed form, with no state in between."""
    length = len(activations)
    x, b, _ = layers.split(convolved(layers, activations.inputs, carried.window, chain(length - 1)))
    fade = (activations.steps * layers.rate.unsqueeze(-2)).cumsum(-2)
    last = fade[..., -1:, :]
    weight = (last - fade).exp() * activations.steps
    weighted = (x * weight[..., None]).movedim(-3, -1).unflatten(-3, (layers.groups, -1))
    written = (weighted @ b.transpose(-3, -2).unsqueeze(-3)).flatten(-4, -3)
    state = torch.addcmul(written, last.transpose(-1, -2).exp()[..., None], carried.state)
    window = torch.cat((carried.window, activations.inputs), -2)[..., length:, :].clone()
    return Carried(window, state)
