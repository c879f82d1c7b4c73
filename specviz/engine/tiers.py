"""Launch tiers of a target pass: eager at its own width, or padded to a fixed width so that it can be a CUDA graph.

Both tiers share one code path: the graph tier makes the same model call over static inputs. On CUDA the call is captured once per
width and number of columns, and replayed; on other devices it runs directly. Positions, cache slots and mask are computed inside
the call from a few numbers, so a step is two or three copies and one launch.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specviz.engine.cache import KeyValues
from specviz.engine.captured import captured
from specviz.engine.to_device import copy_into
from specviz.engine.tree import DraftTree, TreeShape
from specviz.errors import BadInput

TIERS = ("auto", "eager", "graph", "compiled")
WIDTHS = (1, 8, 16, 32, 64, 96, 128, 256, 640)
# Slots kept free after the committed tokens for the rows of one pass, padding included. A larger tree makes the cache grow.
TREE_ROOM = 128
COLUMNS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Numbers of columns for which attention is captured. A pass uses the smallest that fits, because its cost grows with them."""
STRIDE = 256
"""Columns of a pooled cache beyond the widest pass, because compiled code differs for a pass over the whole cache."""
GRAPHS = 24
"""Maximum number of captured passes per cache; the least recently used is evicted."""
IDLE = 2
"""Maximum number of idle caches, with their graphs, kept per model between runs."""


def choose_tier(
    tier: str, device: torch.device, obstacle: str = "", plain: str = "only text models have compiled passes"
) -> tuple[str, str]:
    """Return (tier, warning). "auto" is eager or, on CUDA without an ``obstacle`` to capturing, graph; "compiled" is graph.

    ``plain``: reason why passes cannot be compiled, or "". Raises BadInput for an unknown tier, or for one that is ruled out.
    """
    if tier not in TIERS:
        raise BadInput(f"There is no tier {tier!r}; choose one of {', '.join(TIERS)}.")
    if tier == "auto":
        if device.type != "cuda":
            return "eager", ""
        return ("eager", f"Running eagerly: {obstacle}.") if obstacle else ("graph", "")
    if tier == "compiled" and plain and not obstacle:
        raise BadInput(f"This target cannot run in the compiled tier: {plain}. Choose --tier graph.")
    if tier != "eager" and obstacle:
        raise BadInput(f"This target cannot run in the {tier} tier: {obstacle}. Choose --tier eager.")
    return "eager" if tier == "eager" else "graph", ""


def padded_width(nodes: int) -> int:
    """Return the smallest pass width that holds ``nodes``. Raises BadInput above the largest."""
    if nodes <= WIDTHS[-1]:
        return next(width for width in WIDTHS if nodes <= width)
    raise BadInput(f"A tree of {nodes} nodes is larger than the graph tier's widest pass ({WIDTHS[-1]}); use fewer nodes.")


def bucket(needed: int) -> int:
    """Return the smallest of ``COLUMNS`` that fits ``needed``; beyond them, a multiple of the last."""
    for size in COLUMNS:
        if needed <= size:
            return size
    return -(-needed // COLUMNS[-1]) * COLUMNS[-1]


def tree_attention_mask(tree: DraftTree, length: int, width: int, rows: int, device: torch.device) -> Tensor:
    """Return the tree's attention mask after ``length`` cached tokens, bool [rows, width], True where a row attends.

    Rows after the tree's nodes are padding. Each attends only to its own slot, because the result of an empty row is
    backend-defined.
    """
    nodes = len(tree)
    mask = torch.zeros(rows, width, dtype=torch.bool, device=device)
    mask[:nodes, :length] = True
    mask[:nodes, length : length + nodes] = tree.shape.ancestors_on(device)
    if rows > nodes:
        mask.diagonal(length)[nodes:rows] = True
    return mask


Outputs = tuple[Tensor, Mapping[int, Any]]
Forward = Callable[[Tensor, Tensor, Tensor, Tensor], Outputs]
"""Function from tokens [batch, row], positions [row], bool mask [row, kv] and a session's numbers [number] to logits [row, vocab]
and hidden states [row, hidden] by layer. A negative key has a list of further results, which the session keeps."""


def is_captured(device: torch.device) -> bool:
    """Whether passes of the graph tier are captured on ``device`` instead of run directly."""
    return device.type == "cuda"


def new_pool() -> Any:
    """Return a memory pool for the graphs of one cache, only one of which is replayed at a time."""
    return torch.cuda.graph_pool_handle()


@dataclass
class Inputs:
    """Static inputs of one width.

    ``tokens``: ids [batch, row]. ``places`` [1 + row + number]: length, depth of each row, and the session's numbers.
    ``ancestors``: bool [row, row]. ``both``: tokens and places side by side.
    """

    tokens: Tensor
    places: Tensor
    ancestors: Tensor
    both: Tensor | None = None
    shape: TreeShape | None = None

    @staticmethod
    def of(width: int, device: torch.device, batch: int = 1, numbers: int = 0) -> Inputs:
        both = torch.zeros((batch + 1) * width + 1 + numbers, dtype=torch.long, device=device)
        tokens, places = both.split([batch * width, 1 + width + numbers])
        return Inputs(tokens.view(batch, width), places, torch.eye(width, dtype=torch.bool, device=device), both)

    def fill(self, tree: DraftTree, length: int, numbers: Sequence[int] = ()) -> None:
        """Copy the tree into the static inputs.

        Rows after the tree's nodes are padding: each attends to the text and its own slot, and no node attends to the padding.
        """
        nodes, (batch, width) = len(tree), self.tokens.shape
        padding = [0] * (width - nodes)
        places = [length, *tree.shape.depths, *padding, *numbers]
        if tree.known is not None and self.both is not None:
            copy_into(self.both, [*[*tree.known, *padding] * batch, *places])
        else:
            self.tokens[:, :nodes] = tree.tokens
            copy_into(self.places, places)
        if self.shape is not tree.shape:
            self.ancestors.zero_().fill_diagonal_(True)
            self.ancestors[:nodes, :nodes] = tree.shape.ancestors_on(self.ancestors.device)
            self.shape = tree.shape


@dataclass
class PooledCache:
    """Cache with the passes that were captured over it; one session at a time acquires it, and it is pooled between sessions.

    ``graphs``: captured passes by (variant, taps, columns, width). A variant distinguishes forwards whose frozen values differ. A
    session with its own embeddings drops its variant when it closes, because no other session can use it.
    """

    cache: KeyValues
    graphs: OrderedDict[tuple[Hashable, tuple[int, ...], int, int], tuple[Callable[[], None], Outputs]] = field(
        default_factory=OrderedDict
    )
    inputs: dict[tuple[Hashable, int], Inputs] = field(default_factory=dict)
    pool: Any = None
    state: Any = None
    """State of recurrent layers at fixed addresses, None for a model without any."""

    def find(
        self, variant: Hashable, taps: tuple[int, ...], columns: int, width: int
    ) -> tuple[Callable[[], None], Outputs] | None:
        """Return a captured pass with at least these taps, or None. Additional taps cost nothing."""
        for key in [(variant, taps, columns, width), *self.graphs]:
            if key in self.graphs and (key[0], key[2], key[3]) == (variant, columns, width) and set(taps) <= set(key[1]):
                self.graphs.move_to_end(key)
                return self.graphs[key]
        return None

    def keep(self, key: tuple[Hashable, tuple[int, ...], int, int], graph: tuple[Callable[[], None], Outputs]) -> None:
        """Keep a captured pass, evicting the least recently used."""
        self.graphs[key] = graph
        if len(self.graphs) > GRAPHS:
            self.graphs.popitem(last=False)

    def forget(self, variant: Hashable) -> None:
        """Drop the graphs and inputs of a ``variant``."""
        for key in [key for key in self.graphs if key[0] == variant]:
            del self.graphs[key]
        for name in [name for name in self.inputs if name[0] == variant]:
            del self.inputs[name]

    @torch.inference_mode()
    def grow(self, columns: int) -> None:
        """Grow the cache to ``columns``. Graphs hold the old addresses, so they are dropped."""
        if columns > self.cache.capacity:
            self.graphs.clear()
            self.cache.reserve(columns)


class CachePool:
    """Pool of each model's ``IDLE`` most recently used caches, with their graphs, between runs; freed with the model."""

    def __init__(self) -> None:
        self._idle: weakref.WeakKeyDictionary[Any, list[PooledCache]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def acquire(self, model: Any, words: Sequence[Hashable], capacity: int) -> PooledCache:
        """Return a cache for layers with these labels (``words``) and room for ``capacity`` columns: the smallest idle one that
        fits, or a new one."""
        columns = bucket(capacity) + STRIDE
        with self._lock:
            idle = self._idle.setdefault(model, [])
            fitting = [pooled for pooled in idle if pooled.cache.words == tuple(words) and pooled.cache.capacity >= columns]
            if fitting:
                pooled = min(fitting, key=lambda pooled: pooled.cache.capacity)
                idle.remove(pooled)
            else:
                del idle[: max(0, len(idle) - IDLE + 1)]  # free memory before the next allocation
        if not fitting:
            return PooledCache(KeyValues(words, columns))
        pooled.cache.clear()
        return pooled

    def release(self, model: Any, pooled: PooledCache) -> None:
        """Return the cache of a finished run to the pool."""
        with self._lock:
            idle = self._idle.setdefault(model, [])
            idle.append(pooled)
            del idle[: max(0, len(idle) - IDLE)]


CACHE_POOL = CachePool()


@dataclass
class GraphRunner:
    """Padded passes of one session: ``forward`` over the cache in ``pooled``. ``taps``: hidden states to return.

    ``fused`` returns the forward of a compiled pass by width and columns, None where there is none yet. ``others``: first
    tokens of the batch's other rows, whose later tokens equal the first row's. ``numbers``: further per-session values that a
    capture must not freeze.
    """

    forward: Forward
    pooled: PooledCache
    taps: tuple[int, ...]
    device: torch.device
    variant: Hashable = ()
    others: tuple[Sequence[int], ...] = ()
    numbers: tuple[int, ...] = ()
    fused: Callable[[int, int], Forward | None] = lambda width, columns: None

    def __call__(self, tree: DraftTree, length: int) -> Outputs:
        """Return logits [node, vocab] and hidden states [node, hidden] of the tree's nodes, without padding.

        The next call may overwrite these tensors.
        """
        nodes, width = len(tree), padded_width(len(tree))
        inputs = self.pooled.inputs.get((self.variant, width))
        if inputs is None:
            inputs = Inputs.of(width, self.device, 1 + len(self.others), len(self.numbers))
            self.pooled.inputs[self.variant, width] = inputs
        inputs.fill(tree, length, self.numbers)
        self._set_other_rows(inputs, length, tree.shape.depths)
        logits, hidden = self._launch(inputs, length + width)
        return logits[:nodes], {layer: hidden[layer][:nodes] for layer in self.taps}

    def _set_other_rows(self, inputs: Inputs, length: int, depths: Sequence[int]) -> None:
        """Set the other rows' tokens where their texts still differ from the first row's: usually only at the first root."""
        for row, other in enumerate(self.others, start=1):
            if length < len(other):
                for node, depth in enumerate(depths):
                    if length + depth < len(other):
                        inputs.tokens[row, node] = other[length + depth]

    def _launch(self, inputs: Inputs, needed: int) -> Outputs:
        """Run, or capture and replay, the pass over at least ``needed`` columns."""
        pooled, variant, width = self.pooled, self.variant, inputs.tokens.shape[1]
        pooled.grow(needed)
        columns = min(bucket(needed), pooled.cache.capacity)
        fused = self.fused(width, columns)
        variant = variant if fused is None else ("fused", variant)
        if not is_captured(self.device):
            return self.padded_pass(inputs, columns, fused)
        graph = pooled.find(variant, self.taps, columns, width)
        if graph is None:
            if not pooled.graphs:  # a pool is freed with its last graph and must not be reused
                pooled.pool = new_pool()
            graph = captured(lambda: self.padded_pass(inputs, columns, fused), self.device, pooled.pool)
            pooled.keep((variant, self.taps, columns, width), graph)
        replay, outputs = graph
        replay()
        return outputs

    @torch.inference_mode()
    def padded_pass(self, inputs: Inputs, columns: int, fused: Forward | None = None) -> Outputs:
        """Run the whole pass from its static inputs, with ``fused`` if given, and read none of them on the host."""
        width = inputs.tokens.shape[1]
        length, depths = inputs.places[:1], inputs.places[1 : 1 + width]
        slots = length + torch.arange(width, device=self.device)
        seen = (torch.arange(columns, device=self.device) < length).repeat(width, 1)
        seen.index_copy_(1, slots, inputs.ancestors)
        return self._write(inputs, length + depths, slots, seen, columns, fused or self.forward)

    @torch.inference_mode()
    def rewriting_pass(self, inputs: Inputs, columns: int) -> Outputs:
        """Run the pass in the slots of an existing chain; otherwise like :meth:`padded_pass`."""
        places = inputs.places[1 : 1 + inputs.tokens.shape[1]]
        seen = torch.arange(columns, device=self.device)[None] <= places[:, None]
        return self._write(inputs, places, places, seen, columns, self.forward)

    def _write(self, inputs: Inputs, places: Tensor, slots: Tensor, seen: Tensor, columns: int, forward: Forward) -> Outputs:
        cache = self.pooled.cache
        cache.slots, cache.columns = slots, columns
        try:
            return forward(inputs.tokens, places, seen, inputs.places[1 + inputs.tokens.shape[1] :])
        finally:
            cache.slots = None
