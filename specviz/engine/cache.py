"""KV cache of the target: score a tree behind the committed path, keep one path of it, roll back.

Two stores with one behaviour: :class:`GrowingCache` (views into preallocated buffers, any width of pass; the eager
tier) and :class:`FixedCache` (transformers' StaticCache at one address, padded passes; the graph tier). Kept entries
need no new rotation: a node of depth d was rotated for position length + d, which is the place it is moved to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, StaticCache

from specviz.engine.to_device import to_device

# transformers 5.24 renamed the keyword of every forward, and drops the older name in 5.40.
_RENAMED = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)
CACHE_ARGUMENT = "cache" if _RENAMED else "past_key_values"
"""The keyword by which a transformers model, layer or attention is handed its cache."""


class GrowingLayer(DynamicLayer):
    """A dynamic layer that writes into a roomy buffer, where ``torch.cat`` would copy the whole past in every pass."""

    def __init__(self, capacity: int = 256) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.key_buffer = self._empty(key_states, self.capacity)
        self.value_buffer = self._empty(value_states, self.capacity)
        self.is_initialized = True

    @staticmethod
    def _empty(like: Tensor, capacity: int) -> Tensor:
        batch, heads, _, size = like.shape
        return torch.empty(batch, heads, capacity, size, dtype=like.dtype, device=like.device)

    def _grow(self, needed: int) -> None:
        """Double the buffers until ``needed`` tokens fit."""
        while self.capacity < needed:
            self.capacity *= 2
        for name in ("key_buffer", "value_buffer"):
            old = getattr(self, name)
            new = self._empty(old, self.capacity)
            new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            self._grow(end)
        self.key_buffer[:, :, self.length : end] = key_states
        self.value_buffer[:, :, self.length : end] = value_states
        self.length = end
        return self.committed()

    def committed(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the first ``length`` tokens, [batch, head, kv, size] each."""
        return self.key_buffer[:, :, : self.length], self.value_buffer[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def move(self, source: Tensor, destination: int) -> None:
        """Copy the entries at ``source`` (int64 [node], absolute) to consecutive slots from ``destination``."""
        end = destination + source.shape[0]
        self.key_buffer[:, :, destination:end] = self.key_buffer.index_select(2, source)
        self.value_buffer[:, :, destination:end] = self.value_buffer.index_select(2, source)


class GrowingCache:
    """KV of the eager tier. ``length`` counts committed tokens."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.layers = [GrowingLayer(capacity) for _ in range(layers)]
        self.cache = Cache(layers=list(self.layers))
        self.length = 0

    def width(self, nodes: int) -> int:
        """Columns of the attention mask for a pass over ``nodes`` tokens."""
        return self.length + nodes

    def advance(self, tokens: int) -> None:
        """The pass just made was over committed tokens: they all stay."""
        self.length += tokens

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Keep these nodes of the pass just made (root first, one path, ascending), drop the others."""
        end = self.length + len(path)
        moved = [node for place, node in enumerate(path) if node != place]
        first = len(path) - len(moved)
        if moved:
            source = to_device([self.length + node for node in moved], self.layers[0].device)
            for layer in self.layers:
                layer.move(source, self.length + first)
        self.rewind(end)

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self.length = length
        for layer in self.layers:
            layer.length = length  # what lies behind may be overwritten

    @torch.inference_mode()
    def put(self, slots: Tensor, source: int) -> None:
        """Move the entries from ``source`` on to ``slots`` (int64 [node], absolute, none of them behind ``source``)."""
        end = source + slots.shape[0]
        for layer in self.layers:
            layer.key_buffer.index_copy_(2, slots, layer.key_buffer[:, :, source:end])
            layer.value_buffer.index_copy_(2, slots, layer.value_buffer[:, :, source:end])

    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        """Committed keys and values of every layer, [batch, head, kv, size] each, for audits."""
        return [layer.committed() for layer in self.layers]


class _FixedLayer(Protocol):
    """A layer of a transformers static cache; keys and values, [batch, head, kv, size], are there once it is initialised."""

    is_initialized: bool
    keys: Tensor
    values: Tensor
    cumulative_length: Tensor


class FixedCache:
    """KV of the graph tier: one address for a run's life. The device's length counter is set before each pass."""

    def __init__(self, config: Any, capacity: int) -> None:
        self.cache = StaticCache(config=config, max_cache_len=capacity)
        self.capacity = capacity
        self.length = 0
        self._counters: Tensor | None = None

    @property
    def _layers(self) -> list[_FixedLayer]:
        """The layers as a static cache has them, one for every decoder layer."""
        return cast("list[_FixedLayer]", self.cache.layers)

    def width(self, nodes: int) -> int:
        """Columns of the attention mask: always all of them."""
        return self.capacity

    @torch.inference_mode()
    def point(self) -> None:
        """Make the next pass write behind the committed tokens."""
        layers = self._layers
        if self._counters is None and layers[0].is_initialized:
            # All counters in one tensor, each layer holding its element: one launch sets them all.
            self._counters = torch.zeros(len(layers), dtype=torch.long, device=layers[0].keys.device)
            for place, layer in enumerate(layers):
                layer.cumulative_length = self._counters[place]
        if self._counters is not None:
            self._counters.fill_(self.length)

    @torch.inference_mode()
    def clear(self) -> None:
        """As new, at the same address. Zeroed, since a masked entry still counts as 0 times it, and it may be NaN."""
        self.length = 0
        for layer in self._layers:
            if layer.is_initialized:
                layer.keys.zero_()
                layer.values.zero_()

    def advance(self, tokens: int) -> None:
        self.length += tokens

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """As :meth:`GrowingCache.keep`, in place."""
        moved = [node for place, node in enumerate(path) if node != place]
        first = self.length + len(path) - len(moved)
        if moved:
            source = to_device([self.length + node for node in moved], self._layers[0].keys.device)
            end = first + len(moved)
            for layer in self._layers:
                layer.keys[:, :, first:end] = layer.keys.index_select(2, source)
                layer.values[:, :, first:end] = layer.values.index_select(2, source)
        self.length += len(path)

    def rewind(self, length: int) -> None:
        self.length = length

    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        """Committed keys and values of every layer, [batch, head, kv, size] each, for audits."""
        return [(layer.keys[:, :, : self.length], layer.values[:, :, : self.length]) for layer in self._layers]
