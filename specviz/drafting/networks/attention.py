"""Attention and key-value cache of one draft sequence, written to minimise operator calls.

On a CPU, a pass over a few rows is bound by operator dispatch and by reading weights, not by arithmetic. Axis names: ``row``,
``head``, ``kv`` (key-value heads), ``size`` (of a head), ``column`` (of the cache).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.attention import attention_on_cpu

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
