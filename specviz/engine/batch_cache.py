"""Key-value cache of a batch whose rows have unequal lengths: each row writes at its own offset, and holes are masked.

READER (arXiv 2508.09072) says only that rows accept different numbers of tokens and that the cache is occasionally rearranged.
Here an accepted node stays in the slot where it was computed, and rejected nodes leave holes that masks hide. Compaction moves
the kept entries to the front. Keys are rotated by position, not by slot, so entries move unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from specviz.engine.cache import KeyValueLayer, KeyValues
from specviz.engine.cost import CostCurve
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree

MOST_ROWS = 8


@lru_cache(maxsize=64)
def shared(curve: CostCurve, rows: int) -> CostCurve:
    """Return the cost of a pass over ``rows`` equal trees, as a function of the nodes of one tree."""
    return CostCurve(curve.widths, tuple(curve.at(rows * width) for width in curve.widths))


class RowLayer(KeyValueLayer):
    """One layer of a :class:`RowStore`: buffers [row, head, slot, size]."""

    store: RowStore

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write each row's states at its own slots. Returns the keys and values to attend to, [row, head, slot, size]."""
        store, slots = self.store, self.store.slots
        assert slots is not None
        if not self.is_initialized:
            self.lazy_initialization(*(states.expand(store.rows, -1, -1, -1) for states in (key_states, value_states)))
        part = slice(store.first, store.first + len(slots))
        row = torch.arange(part.start, part.stop, device=self.device)[:, None]
        self.key_buffer[row, :, slots] = key_states.transpose(1, 2)
        self.value_buffer[row, :, slots] = value_states.transpose(1, 2)
        return self.key_buffer[part, :, : store.columns], self.value_buffer[part, :, : store.columns]

    def get_seq_length(self) -> int:
        """Number of slots in the longest row before the slots that the next pass writes."""
        return 0 if self.store.slots is None else self.store.columns - self.store.slots.shape[1]


class RowStore(KeyValues):
    """Keys and values of ``rows`` rows.

    ``slots`` [row, node]: slots that the next pass writes, for the rows from ``first`` on.
    """

    layer_type = RowLayer

    def __init__(self, layers: int, rows: int, capacity: int) -> None:
        super().__init__([None] * layers, capacity)
        self.rows = rows
        self.first = 0

    def gather(self, start: int, slots: Tensor) -> None:
        """Copy the entries ``slots`` [row, slot], in this order, to the slots from ``start`` on."""
        row = torch.arange(len(slots), device=slots.device)[:, None]
        for bank in self._banks.values():
            bank[..., start : start + slots.shape[1], :] = bank[:, row, :, slots].permute(2, 0, 3, 1, 4)

    def select(self, rows: Tensor) -> None:
        self.rows = len(rows)
        for name, bank in self._banks.items():
            self._banks[name] = bank.index_select(1, rows)
        self._make_all_views()


@dataclass(frozen=True)
class PassLayout:
    """Layout of a pass over one tree per row, padded to the largest tree: tokens and positions [row, node], mask [row, node,
    slot].

    ``places`` [row, slot]: position of each slot's token, for sliding windows.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    places: Tensor


class RowCache:
    """Key-value cache of up to eight rows. ``slots_of[row][position]`` is the slot of a committed token."""

    def __init__(self, layers: int, rows: int, capacity: int, device: torch.device) -> None:
        self.store = RowStore(layers, rows, capacity)
        self.cache = self.store.cache
        self.device = device
        self.slots_of: list[list[int]] = [[] for _ in range(rows)]
        self.tails = [0] * rows

    def __len__(self) -> int:
        return len(self.slots_of)

    def length(self, row: int) -> int:
        """Number of committed tokens in a row."""
        return len(self.slots_of[row])

    def set_slots(self, first: int, trees: Sequence[DraftTree]) -> PassLayout:
        """Prepare the next pass: it writes the trees of rows ``first``, ``first`` + 1, … after each row's entries."""
        rows = range(first, first + len(trees))
        wide = max(map(len, trees))
        width = max(self.tails[row] for row in rows) + wide
        slots = [[self.tails[row] + node for node in range(wide)] for row in rows]
        self.store.first, self.store.columns, self.store.slots = first, width, to_device(slots, self.device)
        self.store.reserve(width)
        token_rows, depths = [], []
        for row, tree in zip(rows, trees, strict=True):
            idle = wide - len(tree)
            token_rows.append([*tree.host_tokens, *([tree.host_tokens[0]] * idle)])
            depths.append([self.length(row) + depth for depth in (*tree.shape.depths, *([0] * idle))])
        positions = to_device(depths, self.device)
        mask, places = self._mask(rows, trees, wide, width, positions)
        return PassLayout(to_device(token_rows, self.device), positions, mask, places)

    def _mask(
        self, rows: Sequence[int], trees: Sequence[DraftTree], wide: int, width: int, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mask [row, node, slot] and the position in each slot [row, slot].

        A padding node attends only to its own slot, because attention over an empty set is undefined.
        """
        mask = torch.zeros(len(trees), wide, width, dtype=torch.bool, device=self.device)
        places = torch.zeros(len(trees), width, dtype=torch.long, device=self.device)
        for number, (row, tree) in enumerate(zip(rows, trees, strict=True)):
            nodes, tail, slots = len(tree), self.tails[row], to_device(self.slots_of[row], self.device)
            column = torch.zeros(width, dtype=torch.bool, device=self.device)
            column[slots] = True
            mask[number, :nodes] = column
            mask[number, :nodes, tail : tail + nodes] = tree.shape.ancestors_on(self.device)
            mask[number].diagonal(tail)[nodes:wide] = True
            places[number, slots] = torch.arange(len(slots), device=self.device)
            places[number, tail : tail + wide] = positions[number]
        return mask, places

    def keep(self, row: int, path: Sequence[int]) -> None:
        """Keep these nodes (ascending, one path) of the row's last tree in place; later slots become free."""
        base = self.tails[row]
        self.slots_of[row] += [base + node for node in path]
        self.tails[row] = base + path[-1] + 1

    def holes(self, row: int) -> int:
        """Number of slots before the row's end that hold rejected nodes."""
        return self.tails[row] - self.length(row)

    def runs(self, row: int) -> list[int]:
        """Lengths of alternating runs of kept slots and holes, kept first: ``[12, 3, 4]`` is 12 kept, 3 holes, 4 kept."""
        lengths, place = [0], 0
        for slot in self.slots_of[row]:
            if slot > place:
                lengths += [slot - place, 0]
            lengths[-1] += 1
            place = slot + 1
        return lengths

    @torch.inference_mode()
    def compact(self) -> int:
        """Move the kept entries to the front of their rows. Returns the number of entries moved per layer."""
        moved, start = 0, min(self.tails)
        for row_slots in self.slots_of:
            places = [place for place, slot in enumerate(row_slots) if slot != place]
            moved += len(places)
            start = min([start, *places[:1]])
        if moved:
            longest = max(map(len, self.slots_of))
            # Shorter rows are padded with copies of their first slot, which masks hide.
            slots = [[*row_slots[start:], *([0] * (longest - max(start, len(row_slots))))] for row_slots in self.slots_of]
            self.store.gather(start, to_device(slots, self.device))
        self.slots_of = [list(range(len(row_slots))) for row_slots in self.slots_of]
        self.tails = [len(row_slots) for row_slots in self.slots_of]
        return moved

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.store.select(to_device(list(rows), self.device))
        self.slots_of = [self.slots_of[row] for row in rows]
        self.tails = [self.tails[row] for row in rows]
