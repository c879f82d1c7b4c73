"""Launch tiers of a target pass: eager at its own width, or padded to a fixed width so that it can be a CUDA graph.

One code path: the graph tier runs the same model call over static buffers; on CUDA the call is captured once per width
and replayed, elsewhere it is simply made, so its arithmetic is tested on any machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.errors import BadInput

TIERS = ("auto", "eager", "graph")
WIDTHS = (1, 8, 16, 32, 64, 96, 128, 256, 640)
# Slots a cache keeps free behind the committed tokens for the rows of one pass, padding included.
TREE_ROOM = WIDTHS[-1]
CAPACITIES = (512, 1024, 2048, 4096, 8192, 16384, 32768)


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


def bucket(capacity: int) -> int:
    """The smallest cache size that holds ``capacity`` tokens; attention cost follows it, hence not one size for all."""
    for size in CAPACITIES:
        if capacity <= size:
            return size
    return capacity


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


_CAPTURING = threading.Lock()


@dataclass
class Buffers:
    """Static inputs and outputs of one width."""

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    outputs: tuple[Tensor, Mapping[int, Tensor]] | None = None
    graph: torch.cuda.CUDAGraph | None = None


Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Mapping[int, Tensor]]]


@dataclass
class GraphRunner:
    """Replays ``forward(tokens [1, row], positions [1, row], mask [1, 1, row, kv])`` at fixed widths over one cache.

    ``point`` resets the cache's write position; it is called before every launch, outside the graph.
    """

    forward: Forward
    point: Callable[[], None]
    capacity: int
    device: torch.device
    mask_dtype: torch.dtype
    by_width: dict[int, Buffers] = field(default_factory=dict)

    def __call__(self, tree: DraftTree, length: int) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Logits [node, vocab] and hidden states [node, hidden] of the tree's own nodes, padding cut off."""
        width = padded_width(len(tree))
        buffers = self.by_width.get(width) or self._make(width)
        self._fill(buffers, tree, length, width)
        logits, hidden = self._launch(buffers)
        nodes = len(tree)
        return logits[:nodes], {layer: states[:nodes] for layer, states in hidden.items()}

    def _make(self, width: int) -> Buffers:
        buffers = Buffers(
            tokens=torch.zeros(1, width, dtype=torch.long, device=self.device),
            positions=torch.zeros(1, width, dtype=torch.long, device=self.device),
            mask=torch.zeros(1, 1, width, self.capacity, dtype=self.mask_dtype, device=self.device),
        )
        self.by_width[width] = buffers
        return buffers

    def _fill(self, buffers: Buffers, tree: DraftTree, length: int, width: int) -> None:
        nodes = len(tree)
        buffers.tokens[0, :nodes] = tree.tokens
        places = [length + depth for depth in tree.shape.depths] + [length] * (width - nodes)
        buffers.positions[0].copy_(to_device(places, self.device))
        mask = tree_attention_mask(tree, length, self.capacity, width, self.device)
        if self.mask_dtype == torch.bool:
            buffers.mask[0, 0].copy_(mask)
        else:
            buffers.mask.fill_(torch.finfo(self.mask_dtype).min)
            buffers.mask[0, 0].masked_fill_(mask, 0)

    def _launch(self, buffers: Buffers) -> tuple[Tensor, Mapping[int, Tensor]]:
        self.point()
        if self.device.type != "cuda":
            return self.forward(buffers.tokens, buffers.positions, buffers.mask)
        if buffers.graph is None:
            self._capture(buffers)
            self.point()
        assert buffers.graph is not None and buffers.outputs is not None
        buffers.graph.replay()
        return buffers.outputs

    def _capture(self, buffers: Buffers) -> None:
        """Warm up on a side stream, as CUDA asks, then record the call. Writes land where the next pass overwrites."""
        with _CAPTURING, torch.cuda.device(self.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.point()
                    self.forward(buffers.tokens, buffers.positions, buffers.mask)
            torch.cuda.current_stream().wait_stream(side)
            self.point()
            graph = torch.cuda.CUDAGraph()
            # Another user's run may allocate or copy meanwhile, which the default mode would count as an error of ours.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                buffers.outputs = self.forward(buffers.tokens, buffers.positions, buffers.mask)
            buffers.graph = graph
