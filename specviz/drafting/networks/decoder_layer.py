"""Decoder layer of a draft network, its attention and KV cache, laid out for inference with few operator calls.

On a CPU, a pass over a few rows is bound by operator dispatch and by reading weights, not by arithmetic. One layout serves
feature heads, block-filling and cross-attention. The names of a layer's tensors are the published ones. Channels of queries and
keys are ordered so that a head's two halves rotate together.

Axis names: ``row``, ``hidden``, ``head``, ``kv`` (key-value heads), ``size`` (of a head), ``column`` (of the cache), ``expert``,
``chosen``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.head_config import Experts, HeadConfig
from specviz.drafting.networks.rotary import turn
from specviz.engine.attention import attention_on_cpu

_LAYER_NORM_EPS = 1e-5
Product = Callable[[Tensor], Tensor]
"""Function that multiplies rows by a fixed matrix."""
Layout = Callable[[Tensor], Product]
"""Function that packs a matrix [out, in] and returns a :data:`Product` that multiplies by it."""


def plain(weight: Tensor) -> Product:
    """Return a function that multiplies by the unpacked ``weight``."""
    return partial(F.linear, weight=weight)


class KeyValues:
    """KV cache [kv, column, size] of one run, with spare capacity; it grows by doubling."""

    def __init__(self, kv_heads: int, size: int, capacity: int, like: Tensor) -> None:
        shape = (2, kv_heads, capacity, size)
        self._both = torch.empty(shape, dtype=like.dtype, device=like.device)

    def reserve(self, columns: int) -> None:
        """Make room for this many columns; existing columns are kept."""
        capacity = self._both.shape[2]
        if columns > capacity:
            wider = torch.empty_like(self._both[:, :, :1]).repeat(1, 1, max(columns, 2 * capacity), 1)
            wider[:, :, :capacity] = self._both
            self._both = wider

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all columns, each [kv, column, size]."""
        return self._both[0], self._both[1]

    def copy(self, other: KeyValues, columns: int) -> None:
        """Copy the first ``columns`` columns of another cache."""
        self._both[:, :, :columns] = other._both[:, :, :columns]

    def clear(self) -> None:
        """Fill with zeros, because masked columns still enter products with weight 0 and must be finite."""
        self._both.zero_()

    def put(self, start: int | Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [row, kv, size] from column ``start`` on. Returns the columns up to the last written, [kv,
        column, size].

        If ``start`` is a tensor [row] of columns, the whole cache is returned, and a mask must exclude unused columns.
        """
        if isinstance(start, Tensor):
            self._both[0].index_copy_(1, start, keys.transpose(0, 1))
            self._both[1].index_copy_(1, start, values.transpose(0, 1))
            return self._both[0], self._both[1]
        end = start + len(keys)
        self._both[0, :, start:end] = keys.transpose(0, 1)
        self._both[1, :, start:end] = values.transpose(0, 1)
        return self._both[0, :, :end], self._both[1, :, :end]


class LayerCaches:
    """Keys and values of one run by layer: ``first`` extra columns, then ``each`` columns per input."""

    def __init__(self, layers: int, sizes: Any, inputs: int, like: Tensor, first: int = 0, each: int = 1) -> None:
        """``sizes``: config with the number and size of key-value heads."""
        self._first, self._each = first, each
        self.layers = [KeyValues(sizes.kv_heads, sizes.head_size, self.columns(inputs), like) for _ in range(layers)]

    def columns(self, inputs: int) -> int:
        """Return the number of columns for this many inputs."""
        return self._first + self._each * inputs

    def reserve(self, inputs: int) -> None:
        """Make room for this many inputs; existing columns are kept."""
        for layer in self.layers:
            layer.reserve(self.columns(inputs))

    def copy(self, other: Self, inputs: int) -> None:
        """Copy the first ``inputs`` inputs of another cache."""
        for layer, others in zip(self.layers, other.layers, strict=True):
            layer.copy(others, self.columns(inputs))

    def clear(self) -> None:
        for layer in self.layers:
            layer.clear()


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the attention output [row, head * size] of queries [row, head, size] over keys and values [kv, column, size].

    Query heads that share a key-value head are folded into rows, so keys are not repeated. On a CPU,
    :func:`~specviz.engine.attention.attention_on_cpu` does this only for a single row.
    """
    rows, heads, size = queries.shape
    groups = len(keys)
    if queries.device.type == "cpu":
        seen = None if mask is None else mask[None, None]
        return attention_on_cpu(queries.transpose(0, 1)[None], keys[None], values[None], seen).reshape(rows, heads * size)
    shaped = queries.view(rows, groups, heads // groups, size).permute(1, 2, 0, 3).reshape(1, groups, -1, size)
    repeated = None if mask is None else mask.repeat(heads // groups, 1)
    attended = F.scaled_dot_product_attention(shaped, keys[None], values[None], attn_mask=repeated)
    return attended.view(groups, -1, rows, size).permute(2, 0, 1, 3).reshape(rows, heads * size)


class DecoderLayer:
    """Decoder layer with packed matrices.

    ``part``: the layer's tensors by their names within it. ``before`` and ``between``: weights of the norms of the attention's
    and the feed-forward's input, folded into the matrices; None if the caller applies them. ``names``: the projections of the
    layer's input, of queries, keys and values. ``norm`` and ``norm_bias`` [head + kv, size]: those of the norm of queries and
    keys; with a bias, it is a layer norm.
    """

    def __init__(
        self, config: HeadConfig, part: Mapping[str, Tensor], layout: Layout, before: Tensor | None = None,
        between: Tensor | None = None, names: str = "qkv",
    ) -> None:  # fmt: skip
        def norm(kind: str) -> Tensor | None:
            if f"self_attn.q_norm.{kind}" not in part:
                return None
            sizes = {"q": config.heads, "k": config.kv_heads}
            rows = [part[f"self_attn.{name}_norm.{kind}"].expand(heads, -1) for name, heads in sizes.items()]
            return torch.cat(rows)[:, config.channels()]

        weight = projections(config, part, names)
        self.config = config
        self._entering = layout((weight if before is None else weight * before).contiguous())
        self.bias = projections(config, part, names, "bias") if "self_attn.q_proj.bias" in part else None
        self.norm, self.norm_bias = norm("weight"), norm("bias")
        self._leaving, self._leaving_bias = layout(part["self_attn.o_proj.weight"]), part.get("self_attn.o_proj.bias")
        experts = config.experts
        self.feed = feed_forward(part, layout, between) if experts is None else ExpertLayer(experts, part, layout)

    def enter(self, x: Tensor) -> Tensor:
        """Map the attention's input [.., hidden] to queries, keys and values, and gates if any: [.., head + 2 kv, size]."""
        return add_bias(self._entering(x), self.bias).unflatten(-1, (-1, self.config.head_size))

    def leave(self, attended: Tensor) -> Tensor:
        """Map the attention's output [.., head * size] to what is added to the rows [.., hidden]."""
        return add_bias(self._leaving(attended), self._leaving_bias)

    def __call__(
        self, inputs: Tensor, residual: Tensor, turns: Tensor, cache: KeyValues, start: int | Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return outputs [row, hidden] from the attention's ``inputs`` [row, width] and the ``residual`` [row, hidden].

        ``turns``: rotary factors [2, row, 1, size]. ``start`` and ``mask``: as for the networks.
        """
        config = self.config
        heads, turning = config.heads, config.heads + config.kv_heads
        values = turning + config.kv_heads
        mixed = self.enter(inputs)
        turned = mixed[:, :turning]
        if self.norm is not None:
            layered = self.norm_bias is not None
            normed = F.layer_norm(turned, (config.head_size,), eps=_LAYER_NORM_EPS) if layered else unit(turned, config)
            turned = add_bias(normed * self.norm, self.norm_bias)
        turned = turn(turned, *turns)
        attended = attend(turned[:, :heads], *cache.put(start, turned[:, heads:], mixed[:, turning:values]), mask)
        return self.finish(residual, attended * mixed[:, values:].flatten(1).sigmoid() if config.gated else attended)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return outputs [row, hidden] from the attention's output [row, head * size]."""
        residual = residual + self.leave(attended)
        return residual + self.feed(unit(residual, self.config))


def unit(x: Tensor, config: HeadConfig) -> Tensor:
    """Return the RMS norm of x over the last axis, without a weight."""
    return F.rms_norm(x, (x.shape[-1],), eps=config.how.eps)


def layer_tensors(tensors: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Return the tensors of one layer by their names within it."""
    start = f"layers.{number}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def projections(config: HeadConfig, part: Mapping[str, Tensor], names: str, kind: str = "weight") -> Tensor:
    """Return the stacked weights or biases of these projections ("qkv") of a layer.

    Channels of queries and keys are in the order of :meth:`HeadConfig.channels`. Gates, stored with the queries, come last.
    """
    rows, gates = [], list[Tensor]()
    for name in names:
        own = part[f"self_attn.{name}_proj.{kind}"].unflatten(0, (-1, config.head_size))
        if name == "q" and config.gated:
            own, gate = own.unflatten(0, (config.heads, 2)).unbind(1)
            gates = [gate]
        rows.append(own if name == "v" else own[:, config.channels().to(own.device)])
    return torch.cat((*rows, *gates)).flatten(0, 1)


def feed_forward(part: Mapping[str, Tensor], layout: Layout, norm: Tensor | None = None, start: str = "mlp") -> Product:
    """Return a dense feed-forward whose names begin with ``start``, with the weight of the preceding ``norm`` folded in."""
    widening = torch.cat((part[f"{start}.gate_proj.weight"], part[f"{start}.up_proj.weight"]))
    widen = layout((widening if norm is None else widening * norm).contiguous())
    narrow = layout(part[f"{start}.down_proj.weight"])
    biases = [part[name] for side in ("gate", "up") if (name := f"{start}.{side}_proj.bias") in part]
    wide_bias, narrow_bias = torch.cat(biases) if biases else None, part.get(f"{start}.down_proj.bias")

    def feed(x: Tensor) -> Tensor:
        gate, up = add_bias(widen(x), wide_bias).chunk(2, dim=-1)
        return add_bias(narrow(F.silu(gate) * up), narrow_bias)

    return feed


def add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


class ExpertLayer:
    """Mixture-of-experts feed-forward: a router chooses a few experts per row; a shared expert may process all rows.

    The weight of the preceding norm is folded into the matrices.
    """

    def __init__(self, experts: Experts, part: Mapping[str, Tensor], layout: Layout) -> None:
        self._experts, norm = experts, part["post_attention_layernorm.weight"]
        self._router = part["mlp.gate.weight"] * norm
        self._correction = part.get("mlp.gate.e_score_correction_bias")
        self._widening, self._narrowing = part["mlp.experts.gate_up_proj"] * norm, part["mlp.experts.down_proj"]
        self._shared = feed_forward(part, layout, norm, "mlp.shared_expert") if experts.shared else None
        self._shared_gate = part["mlp.shared_expert_gate.weight"] * norm if experts.shared_gate else None

    def __call__(self, x: Tensor) -> Tensor:
        """Map [row, hidden] to [row, hidden]."""
        weights, chosen = self.routed(x)
        total = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            row, place = (chosen == expert).nonzero(as_tuple=True)
            gate, up = F.linear(x[row], self._widening[expert]).chunk(2, dim=-1)
            output = F.linear(F.silu(gate) * up, self._narrowing[expert])
            total = total.index_add(0, row, output * weights[row, place, None])
        if self._shared is None:
            return total
        shared = self._shared(x)
        return total + (shared if self._shared_gate is None else shared * F.linear(x, self._shared_gate).sigmoid())

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and indices of each row's experts, both [row, chosen]."""
        experts, wide = self._experts, torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(wide), self._router.to(wide))
        scores = logits.softmax(-1) if experts.scores == "softmax" else logits.sigmoid()
        by = scores if self._correction is None else scores + self._correction.to(wide)
        if experts.groups > 1:  # a group is ranked by the sum of its best two scores
            grouped = by.unflatten(-1, (experts.groups, -1))
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(experts.chosen_groups, dim=-1).indices
            kept = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=x.device).scatter(-1, best, True)
            by = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
        chosen = by.topk(experts.chosen, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if experts.normed:
            weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if experts.scores == "sigmoid" else 0.0))
        return (weights * experts.scale).to(x.dtype), chosen
