"""Key-value cache of the target: score a tree after the committed path, keep one of its paths, roll back.

In the eager tier, a pass of any width is appended. In the graph tier, the cache has a fixed address, and slots come from a device
tensor. Layers of one shape share a tensor, so keeping a path is one gather for all of them. Kept entries need no new rotation: a
node of depth d was rotated for position length + d, to which it moves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from specviz.engine.to_device import to_device

# transformers 5.24 renamed the keyword of each forward, and drops the older name in 5.40.
_RENAMED = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)
CACHE_ARGUMENT = "cache" if _RENAMED else "past_key_values"
"""Keyword by which a transformers model, layer or attention receives its cache."""


class KeyValueLayer(DynamicLayer):
    """One layer of a :class:`KeyValues`: views [batch, head, kv, size] of its keys and values."""

    key_buffer: Tensor
    value_buffer: Tensor

    def __init__(self, store: KeyValues, number: int) -> None:
        super().__init__()
        self.store = store
        self.number = number
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.store.admit(self, key_states, value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append, or write at the store's slots. Returns the keys and values to attend to, [batch, head, kv, size]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        store = self.store
        if store.slots is not None:
            self.key_buffer.index_copy_(2, store.slots, key_states)
            self.value_buffer.index_copy_(2, store.slots, value_states)
            return self.key_buffer[:, :, : store.columns], self.value_buffer[:, :, : store.columns]
        end = self.length + key_states.shape[-2]
        if end > store.capacity:
            store.reserve(end)
        self.key_buffer[:, :, self.length : end] = key_states
        self.value_buffer[:, :, self.length : end] = value_states
        self.length = end
        return self.committed()

    def committed(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the first ``length`` tokens, each [batch, head, kv, size]."""
        return self.key_buffer[:, :, : self.length], self.value_buffer[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length


class KeyValues:
    """Keys and values of a run. ``length``: number of committed tokens. ``capacity``: number of allocated columns.

    ``words``: one label per layer. Layers with the same label have entries of the same shape on the same device. They share a
    tensor [place, batch, head, kv, size], called a bank. New memory is zeroed, because a masked NaN times 0 is still NaN.
    """

    layer_type: type[KeyValueLayer] = KeyValueLayer

    def __init__(self, words: Sequence[Hashable], capacity: int) -> None:
        self.words = tuple(words)
        self.layers = [self.layer_type(self, number) for number in range(len(self.words))]
        self.cache = Cache(layers=list(self.layers))
        self.capacity = capacity
        self.length = 0
        # For a captured or batched pass: the slots to write, int64 [node] or [row, node], and the columns to attend to.
        self.slots: Tensor | None = None
        self.columns = 0
        self._banks: dict[Hashable, Tensor] = {}
        self._homes: dict[int, tuple[tuple[Hashable, int], tuple[Hashable, int]]] = {}

    def admit(self, layer: KeyValueLayer, keys: Tensor, values: Tensor) -> None:
        """Assign a layer its places in the banks, by the shape, dtype and device of its first entries."""
        word = self.words[layer.number]
        place = self.words[: layer.number].count(word)
        many = self.words.count(word)
        shapes = [(word, part.device, part.dtype, part.shape[:2], part.shape[3]) for part in (keys, values)]
        together = shapes[0] == shapes[1]
        names = [(*shape, 0 if together else part) for part, shape in enumerate(shapes)]
        for name, part in zip(names, (keys, values), strict=True):
            if name not in self._banks:
                batch, heads, _, size = part.shape
                self._banks[name] = part.new_zeros(many * (1 + together), batch, heads, self.capacity, size)
        places = (2 * place, 2 * place + 1) if together else (place, place)
        self._homes[layer.number] = ((names[0], places[0]), (names[1], places[1]))
        self._make_views(layer)

    def entries(self, number: int) -> Tensor:
        """Keys and values of layer ``number``, which hold one text and have one shape: [2, head, column, size]."""
        bank, place = self._homes[number][0]
        return self._banks[bank][place : place + 2, 0]

    def _make_views(self, layer: KeyValueLayer) -> None:
        (key_bank, key_place), (value_bank, value_place) = self._homes[layer.number]
        layer.key_buffer = self._banks[key_bank][key_place]
        layer.value_buffer = self._banks[value_bank][value_place]

    def _make_all_views(self) -> None:
        for number in self._homes:
            self._make_views(self.layers[number])

    def reserve(self, needed: int) -> None:
        """Double the memory until ``needed`` columns fit. Entries stay, at another address."""
        if needed <= self.capacity:
            return
        while self.capacity < needed:
            self.capacity *= 2
        for name, bank in self._banks.items():
            self._banks[name] = F.pad(bank, (0, 0, 0, self.capacity - bank.shape[3]))
        self._make_all_views()

    def advance(self, tokens: int) -> None:
        """Commit all ``tokens`` of the last pass."""
        self.rewind(self.length + tokens)

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Keep these nodes of the last pass (root first, one path, ascending), and drop the others."""
        end = self.length + len(path)
        moved = [node for place, node in enumerate(path) if node != place]
        if moved:
            places = [self.length + node for node in moved]
            sources: dict[torch.device, Tensor] = {}
            for bank in self._banks.values():
                if bank.device not in sources:
                    sources[bank.device] = to_device(places, bank.device)
                # index_select copies first, as source and destination columns may overlap.
                bank[..., end - len(moved) : end, :] = bank.index_select(3, sources[bank.device])
        self.rewind(end)

    def rewind(self, length: int) -> None:
        """Drop all but the first ``length`` tokens."""
        self.length = length
        for layer in self.layers:
            layer.length = length  # later entries may be overwritten

    @torch.inference_mode()
    def put(self, slots: Tensor, source: int) -> None:
        """Move the entries at columns ``source``, ``source`` + 1, … to ``slots`` (int64 [node]; no slot is after its source
        column).
        """
        end = source + slots.shape[0]
        for bank in self._banks.values():
            bank.index_copy_(3, slots.to(bank.device), bank[..., source:end, :])

    @torch.inference_mode()
    def clear(self) -> None:
        """Zero the entries and the length, at the same address."""
        self.rewind(0)
        for bank in self._banks.values():
            bank.zero_()
