"""Launch tiers of a target pass: eager at its own width, or padded to a fixed width so that it can be a CUDA graph.

One code path: the graph tier makes the same model call over static inputs; on CUDA the call is captured once per width and
columns and replayed, elsewhere it is simply made, so its arithmetic is tested on any machine. Positions, cache slots and mask are
computed inside the call from a few numbers, so that a step is two or three copies and one launch.
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

from specviz.engine.cache import FixedCache
from specviz.engine.captured import captured
from specviz.engine.clock import capturing
from specviz.engine.to_device import overwrite
from specviz.engine.tree import DraftTree, TreeShape
from specviz.errors import BadInput

TIERS = ("auto", "eager", "graph")
WIDTHS = (1, 8, 16, 32, 64, 96, 128, 256, 640)
# Slots a cache keeps free behind the committed tokens for the rows of one pass, padding included. A larger tree makes it grow.
TREE_ROOM = 128
COLUMNS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Columns that attention may be captured for: the smallest that hold the text, as its cost follows them."""
STRIDE = 256
"""Memory of a cache comes in so many columns at a time, at least two of them."""
GRAPHS = 24
"""Captured passes that one cache keeps; the one used longest ago makes way."""
IDLE = 2
"""Caches with their graphs that a model keeps between runs."""


def choose_tier(tier: str, device: torch.device, obstacle: str = "") -> tuple[str, str]:
    """(tier, warning). "auto" is graph on CUDA unless ``obstacle`` says why it cannot be captured, else eager."""
    if tier not in TIERS:
        raise BadInput(f"There is no tier {tier!r}; choose one of {', '.join(TIERS)}.")
    if tier == "auto":
        if device.type != "cuda":
            return "eager", ""
        return ("eager", f"Running eagerly: {obstacle}.") if obstacle else ("graph", "")
    if tier == "graph" and obstacle:
        raise BadInput(f"This target cannot run in the graph tier: {obstacle}. Choose --tier eager.")
    return tier, ""


def padded_width(nodes: int) -> int:
    """The smallest pass width that holds ``nodes``. Raises BadInput above the largest."""
    for width in WIDTHS:
        if nodes <= width:
            return width
    raise BadInput(f"A tree of {nodes} nodes is larger than the graph tier's widest pass ({WIDTHS[-1]}); use fewer nodes.")


def bucket(needed: int) -> int:
    """The smallest number of columns in ``COLUMNS`` that is enough; beyond them as many as are needed, rounded up."""
    for size in COLUMNS:
        if needed <= size:
            return size
    return -(-needed // COLUMNS[-1]) * COLUMNS[-1]


def tree_attention_mask(tree: DraftTree, length: int, width: int, rows: int, device: torch.device) -> Tensor:
    """Bool [rows, width]: the tree's visibility mask behind ``length`` cached tokens, True where attention may look.

    Rows past the tree's nodes are padding; each sees only its own slot, because an empty row is backend-defined.
    """
    nodes = len(tree)
    mask = torch.zeros(rows, width, dtype=torch.bool, device=device)
    mask[:nodes, :length] = True
    mask[:nodes, length : length + nodes] = tree.shape.ancestors_on(device)
    if rows > nodes:
        mask.diagonal(length)[nodes:rows] = True
    return mask


Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Mapping[int, Tensor]]]
"""tokens [1, row], positions [1, row], mask [1, 1, row, kv] to logits [row, vocab] and hidden states [row, hidden] by layer."""
Outputs = tuple[Tensor, Mapping[int, Tensor]]


def is_captured(device: torch.device) -> bool:
    """Whether passes of the graph tier are captured there, and not simply made."""
    return device.type == "cuda"


def new_pool() -> Any:
    """Memory for the graphs of one cache, of which one is replayed at a time."""
    return torch.cuda.graph_pool_handle()


@dataclass
class Inputs:
    """Static inputs of one width: token ids [1, row], (length, depth of each row) [1 + row], ancestors bool [row, row]."""

    tokens: Tensor
    places: Tensor
    ancestors: Tensor
    shape: TreeShape | None = None

    @staticmethod
    def of(width: int, device: torch.device) -> Inputs:
        return Inputs(
            torch.zeros(1, width, dtype=torch.long, device=device),
            torch.zeros(1 + width, dtype=torch.long, device=device),
            torch.eye(width, dtype=torch.bool, device=device),
        )

    def fill(self, tree: DraftTree, length: int) -> None:
        """The rows behind the tree's nodes are padding: each sees the text and its own slot, and nobody sees it."""
        nodes, width = len(tree), self.tokens.shape[1]
        self.tokens[0, :nodes] = tree.tokens
        overwrite(self.places, [length, *tree.shape.depths, *([0] * (width - nodes))])
        if self.shape is not tree.shape:
            ancestors = torch.eye(width, dtype=torch.bool)
            ancestors[:nodes, :nodes] = tree.shape.ancestors
            overwrite(self.ancestors, ancestors)
            self.shape = tree.shape


@dataclass
class Lease:
    """A cache and the passes captured over it, lent to one session at a time and kept for the next.

    ``graphs`` are keyed by (variant, taps, columns, width). A variant tells forwards apart that differ in what a capture would
    freeze; that of a session with embeddings of its own is of no use to another and goes with it.
    """

    cache: FixedCache
    graphs: OrderedDict[tuple[Hashable, tuple[int, ...], int, int], tuple[Callable[[], None], Outputs]] = field(
        default_factory=OrderedDict
    )
    inputs: dict[tuple[Hashable, int], Inputs] = field(default_factory=dict)
    pool: Any = None

    def find(
        self, variant: Hashable, taps: tuple[int, ...], columns: int, width: int
    ) -> tuple[Callable[[], None], Outputs] | None:
        """A captured pass that gives these taps at least: more of them cost nothing."""
        for key in [(variant, taps, columns, width), *self.graphs]:
            if key in self.graphs and (key[0], key[2], key[3]) == (variant, columns, width) and set(taps) <= set(key[1]):
                self.graphs.move_to_end(key)
                return self.graphs[key]
        return None

    def forget(self, variant: Hashable = None) -> None:
        """Drop the graphs of a ``variant``, or all of them."""
        for key in [key for key in self.graphs if variant is None or key[0] == variant]:
            del self.graphs[key]
        for name in [name for name in self.inputs if name[0] == variant]:
            del self.inputs[name]

    @torch.inference_mode()
    def grow(self, columns: int) -> None:
        """Make room. Graphs know addresses, so they go."""
        if columns > self.cache.capacity:
            self.forget()
            self.cache.reserve(columns)


class Leases:
    """The caches that models keep between runs, each with its graphs: the last ``IDLE`` used. They go with the model."""

    def __init__(self) -> None:
        self._idle: weakref.WeakKeyDictionary[Any, list[Lease]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def take(self, model: Any, layers: int | Sequence[Hashable], capacity: int) -> Lease:
        """One with room for ``capacity`` columns: the smallest of those that are idle, else a new one."""
        columns = max(2 * STRIDE, -(-capacity // STRIDE) * STRIDE)
        with self._lock:
            idle = self._idle.setdefault(model, [])
            fitting = [lease for lease in idle if lease.cache.capacity >= columns]
            if fitting:
                lease = min(fitting, key=lambda lease: lease.cache.capacity)
                idle.remove(lease)
            else:
                del idle[: max(0, len(idle) - IDLE + 1)]  # memory is free before more is asked for
        if not fitting:
            return Lease(FixedCache(layers, columns))
        lease.cache.clear()
        return lease

    def give(self, model: Any, lease: Lease) -> None:
        """Keep what a finished run was lent."""
        with self._lock:
            idle = self._idle.setdefault(model, [])
            idle.append(lease)
            del idle[: max(0, len(idle) - IDLE)]


LEASES = Leases()


@dataclass
class GraphRunner:
    """Padded passes of one session: ``forward`` over the cache of its ``lease``. ``taps`` are the hidden states it gives."""

    forward: Forward
    lease: Lease
    taps: tuple[int, ...]
    device: torch.device
    mask_dtype: torch.dtype
    variant: Hashable = ()

    def __call__(self, tree: DraftTree, length: int) -> Outputs:
        """Logits [node, vocab] and hidden states [node, hidden] of the tree's own nodes, padding cut off.

        The next call may overwrite them.
        """
        nodes, width = len(tree), padded_width(len(tree))
        self.lease.grow(length + width)
        columns = min(bucket(length + width), self.lease.cache.capacity)
        name = (self.variant, width)
        inputs = self.lease.inputs.get(name)
        if inputs is None:
            inputs = self.lease.inputs[name] = Inputs.of(width, self.device)
        inputs.fill(tree, length)
        logits, hidden = self._launch(inputs, columns, width)
        return logits[:nodes], {layer: hidden[layer][:nodes] for layer in self.taps}

    def _launch(self, inputs: Inputs, columns: int, width: int) -> Outputs:
        if not is_captured(self.device):
            return self._pass(inputs, columns)
        graph = self.lease.find(self.variant, self.taps, columns, width)
        if graph is None:
            graph = self._capture(inputs, columns, width)
        replay, outputs = graph
        replay()
        return outputs

    def _capture(self, inputs: Inputs, columns: int, width: int) -> tuple[Callable[[], None], Outputs]:
        """Capturing takes longer than many steps, and is done once: it is no part of any run's time."""
        lease = self.lease
        with capturing():
            if not lease.graphs:  # a pool goes with its last graph, and must not be asked again
                lease.pool = new_pool()
            graph = captured(lambda: self._pass(inputs, columns), self.device, lease.pool)
        lease.graphs[self.variant, self.taps, columns, width] = graph
        if len(lease.graphs) > GRAPHS:
            lease.graphs.popitem(last=False)
        return graph

    @torch.inference_mode()
    def _pass(self, inputs: Inputs, columns: int) -> Outputs:
        """The whole pass from its static inputs, nothing of which the host has to know."""
        length, depths = inputs.places[:1], inputs.places[1:]
        slots = length + torch.arange(len(depths), device=self.device)
        seen = (torch.arange(columns, device=self.device) < length).repeat(len(depths), 1)
        mask = seen.index_copy_(1, slots, inputs.ancestors)
        if self.mask_dtype != torch.bool:
            mask = torch.zeros_like(mask, dtype=self.mask_dtype).masked_fill_(~mask, torch.finfo(self.mask_dtype).min)
        cache = self.lease.cache
        cache.slots, cache.columns = slots, columns
        try:
            return self.forward(inputs.tokens, (length + depths)[None], mask[None, None])
        finally:
            cache.slots = None
