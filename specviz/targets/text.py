"""Causal language model as a target: any transformers decoder with full or sliding-window attention."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.engine.attention import GROUPED
from specviz.engine.cache import CACHE_ARGUMENT, FixedCache, GrowingCache
from specviz.engine.interfaces import TargetPass
from specviz.engine.stop import chunks
from specviz.engine.tiers import LEASES, TREE_ROOM, GraphRunner, Lease, choose_tier, padded_width, tree_attention_mask
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.errors import ContextFull, ModelUnavailable
from specviz.targets.layers import (
    FULL,
    SLIDING,
    boundary_of,
    layer_kinds,
    rereads,
    rope_kinds,
    sliding_windows,
)
from specviz.targets.placed import devices_of, layer_devices, refuse_offloaded

# Branches of a tree cannot be separated by masking a recurrence, so such layers are refused rather than run wrong.
BRANCHABLE = {FULL, SLIDING}
# Kernels that take any mask.
KERNELS = ("sdpa", "eager")
PIECES = {"cpu": 256}
"""Most tokens of a prompt that one pass reads, by device: half a second of one core with SmolLM2, so that a stop is seen soon.
Twelve passes over 1 500 tokens cost a half more than one, six a fifth."""
PIECE = 4096
"""On every other device."""
BEHIND = 1024
"""So many tokens behind a piece cost as much as the piece itself: it is half as long there, and a quarter at least."""
# These RoPE kinds look at the largest position on the host, which a captured graph cannot do.
HOST_ROPE = {"dynamic", "longrope"}


def unsupported_reason(model: Any, kinds: Sequence[str]) -> str:
    """Why this model cannot verify trees, or nothing."""
    unknown = sorted(set(kinds) - BRANCHABLE)
    if unknown or getattr(model, "_is_stateful", False):
        what = f"layers of kind {', '.join(unknown)}" if unknown else "recurrent layers"
        return f"has {what}, which cannot hold the branches of a draft tree; choose a target whose layers all attend"
    config = model.config.get_text_config()
    parameters = inspect.signature(model.forward).parameters
    if "shared_kv_states" in parameters:
        return "drafts from the states of another model, and writes no text of its own; choose the model it belongs to"
    if getattr(config, "is_decoder", True) is False:
        return "is an encoder (is_decoder is false in its config.json), which sees what comes later; choose a decoder"
    if "position_ids" not in parameters or getattr(config, "alibi", False):
        return "takes no position ids, so two branches could not share a depth; choose a target with rotary positions"
    if CACHE_ARGUMENT not in parameters:
        return "keeps no cache of keys and values that a pass could add a tree to; choose a target that does"
    if int(getattr(config, "n_recurrent_loops", 1)) > 1:
        return "runs its layers in loops, each of which caches keys and values of its own; choose a target without loops"
    if "local" in getattr(config, "attention_layers", ()):
        return "has local attention that counts cache slots, not positions; choose a target whose layers all attend fully"
    if len(windows := sliding_windows(config, kinds)) > 1:
        return "has sliding windows that differ between its layers; choose a target with one window"
    if None in windows:
        return "has sliding layers and no sliding_window; choose a target whose config.json says how far they see"
    masks = hasattr(sys.modules[type(model).__module__], "create_sliding_window_causal_mask")
    if windows and not masks and max(one or 0 for one in windows) < int(getattr(config, "max_position_embeddings", 0) or 1 << 20):
        return (
            "has a sliding window that its class in transformers applies to the cache but not within a pass, so its text would "
            "depend on how it is read; choose another target"
        )
    kernel = model.config._attn_implementation
    if kernel not in (*KERNELS, GROUPED):
        return f"runs the attention kernel {kernel}, which ignores a tree's mask; load it with {' or '.join(KERNELS)}"
    return ""


def rope_obstacle(config: Any) -> str:
    """Why rotary positions of this kind cannot be captured in a graph, or nothing."""
    kinds = sorted(HOST_ROPE.intersection(rope_kinds(config)))
    return f"its {kinds[0]} rotary positions are computed on the host" if kinds else ""


Embedding = Callable[[Tensor], Tensor]
"""From token ids [1, row] to what the model reads in their places [1, row, hidden]."""


class TextTarget:
    """Wraps a loaded model. Shared between runs; all state of a run lives in its session.

    ``variant`` tells passes apart that a captured graph would freeze differently, on one model.
    """

    variant: Hashable = ()

    def __init__(self, model: Any, name: str, eos_ids: Sequence[int], tier: str = "auto") -> None:
        self.model = model
        self.name = name
        self.config = model.config.get_text_config()
        self.eos_ids = frozenset(eos_ids)
        self.vocab_size = int(self.config.vocab_size)
        self.context_length = int(getattr(self.config, "max_position_embeddings", 0) or 1 << 20)
        self.device = model.device
        self.dtype = model.dtype
        self.piece = PIECES.get(self.device.type, PIECE)
        self.attention = str(model.config._attn_implementation)
        self.kinds = layer_kinds(self.config)
        self.boundary = boundary_of(self.config)
        self.rereads = rereads(self.config)
        reason = unsupported_reason(model, self.kinds)
        if reason:
            raise ModelUnavailable(f"{name} {reason}.")
        refuse_offloaded(model, name)
        self.window = next(iter(sliding_windows(self.config, self.kinds)), None)
        self.spread = devices_of(model)
        # What layers have in common whose entries one tensor of the cache can hold.
        self.alike = tuple(zip(self.kinds, layer_devices(model, len(self.kinds)) or self.kinds, strict=True))
        # Models with a list of kinds take one mask for each kind; models that slide throughout take one mask.
        self._one_mask = not getattr(self.config, "layer_types", None)
        self.tier, self.warning = choose_tier(tier, self.device, self._obstacle())

    def _obstacle(self) -> str:
        """Why this model cannot be captured in a graph, or nothing."""
        if self.spread:
            return f"its layers lie on several devices ({', '.join(self.spread)}), and a graph is captured on one"
        if SLIDING in self.kinds:
            return "its sliding-window layers need a mask of their own in each pass"
        return rope_obstacle(self.config)

    def piece_at(self, start: int) -> int:
        """Most tokens that one pass reads behind ``start``: every piece takes about as long as the others."""
        return max(1, self.piece // 4, self.piece * BEHIND // (BEHIND + start))

    def open(self, capacity: int, taps: Sequence[int] = ()) -> TextSession:
        """A fresh session with room for ``capacity`` committed tokens; the nodes of a tree come on top of them.

        Raises ContextFull beyond the model's own context.
        """
        self.refuse(capacity)
        return TextSession(self, capacity, tuple(taps))

    def refuse(self, capacity: int) -> None:
        """Raise ContextFull for more tokens than the model can see."""
        if capacity > self.context_length:
            raise ContextFull(f"{capacity} tokens do not fit the {self.context_length}-token context of {self.name}.")

    def mask(self, mask: Tensor, length: int, depths: Sequence[int]) -> Any:
        """What the model's attention wants for a bool mask [row, kv]: additive on eager, a dict where windows slide."""
        if SLIDING not in self.kinds:
            return self.finished(mask)
        near = self.finished(mask & self._window(mask, length, depths))
        return near if self._one_mask else {FULL: self.finished(mask), SLIDING: near}

    def _window(self, mask: Tensor, length: int, depths: Sequence[int]) -> Tensor:
        """Bool [row, kv]: columns whose position is within the sliding window of the row's position."""
        assert self.window is not None
        row = to_device([length + depth for depth in depths], mask.device)
        column = torch.cat([torch.arange(length, device=mask.device), row])
        return row[:, None] - column[None, :] < self.window

    def finished(self, mask: Tensor) -> Tensor:
        """A bool mask [row, kv] as attention wants it, [1, 1, row, kv]: the eager kernel silently *adds* a bool one as 0/1."""
        if self.attention == "eager":
            additive = torch.full(mask.shape, torch.finfo(self.dtype).min, dtype=self.dtype, device=mask.device)
            return additive.masked_fill_(mask, 0)[None, None]
        return mask[None, None]

    def run(
        self, tokens: Tensor, positions: Tensor, mask: Any, cache: Any, taps: Sequence[int], last: int = 0,
        embed: Embedding | None = None, **more: Any,
    ) -> tuple[Tensor, dict[int, Tensor]]:  # fmt: skip
        """One call of the model over ``tokens`` [1, row]: logits [row, vocab] (only the ``last`` if set) and taps.

        ``embed`` stands in for the model's own table of embeddings. ``more`` is what only some models are given.
        """
        options = {"output_hidden_states": list(taps)} if taps else {}
        with torch.inference_mode():
            inputs = {"input_ids": tokens} if embed is None else {"inputs_embeds": embed(tokens)}
            output = self.model(
                **inputs,
                position_ids=positions,
                attention_mask=mask,
                **{CACHE_ARGUMENT: cache},
                use_cache=True,
                logits_to_keep=last,
                **options,
                **more,
            )
        return output.logits[0], {layer: output.hidden_states[layer][0] for layer in taps}


def joined(passes: Sequence[TargetPass]) -> TargetPass:
    """Passes over consecutive pieces of a text as one: the last one's logits, the hidden states of all."""
    if len(passes) == 1:
        return passes[0]
    hidden = {layer: torch.cat([part.hidden[layer] for part in passes]) for layer in passes[-1].hidden}
    return TargetPass(passes[-1].logits, hidden)


class TextSession:
    """One run's cache on a :class:`TextTarget`.

    Where a target's rotary factors depend on the length of the text, every row has those of the text up to the root of its
    pass: so ``generate`` would have computed it. No draft that the engine judges reaches across ``boundary``.
    """

    def __init__(self, target: TextTarget, capacity: int, taps: tuple[int, ...], embed: Embedding | None = None) -> None:
        self.target = target
        self.taps = taps
        self._embed = embed
        self._cache: GrowingCache | FixedCache
        self._graph: GraphRunner | None = None
        # Of a target with a boundary: what is cached, whether it has the long factors, and the tree scored last.
        self._ids: list[int] = []
        self._long = False
        self._tree: DraftTree | None = None
        if target.tier == "graph":
            self._graph = self._runner(LEASES.take(target.model, target.alike, capacity + TREE_ROOM))
            self._cache = self._graph.lease.cache
        else:
            self._cache = GrowingCache(target.alike, capacity + TREE_ROOM)

    def _runner(self, lease: Lease) -> GraphRunner:
        """Padded passes over the borrowed cache."""
        target, taps, embed = self.target, self.taps, self._embed
        more: dict[str, Any] = {} if embed is None else {"embed": embed}

        def forward(tokens: Tensor, places: Tensor, mask: Tensor, _: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
            return target.run(tokens, places[None], target.finished(mask), lease.cache.cache, taps, **more)

        variant = target.variant if embed is None else ("embeddings", id(embed))
        return GraphRunner(forward, lease, taps, target.device, variant)

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return self._cache.length

    def padded(self, nodes: int) -> int:
        """Rows a pass over ``nodes`` really has in this tier."""
        return padded_width(nodes) if self._graph else nodes

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Put ``ids`` behind what is cached; logits [1, vocab] of the last one, hidden [position, hidden]."""
        self._reach(self.length + len(ids) + 1)  # a root follows
        return self._append(ids)

    def _append(self, ids: Sequence[int]) -> TargetPass:
        """The same, whatever the factors."""
        if self.target.boundary:
            self._ids = [*self._ids[: self.length], *ids]
        return joined([self._read(ids[start:end]) for start, end in self._pieces(len(ids))])

    def _pieces(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Start and end of each piece in which the next ``tokens`` of a text are read."""
        behind = self.length
        return chunks(tokens, lambda start: self.target.piece_at(behind + start))

    def _read(self, ids: Sequence[int]) -> TargetPass:
        """One pass over the next tokens of a text."""
        scored = TargetPass(*self._chain(ids))
        self._cache.advance(len(ids))
        return scored

    def _reach(self, tokens: int) -> None:
        """Choose the factors of a text of so many ``tokens``. What is cached with others is read anew where transformers does."""
        boundary = self.target.boundary
        long = 0 < boundary < tokens
        if long != self._long:
            self._long = long
            if self.target.rereads and self.length:
                known = self._ids[: self.length]
                self._cache.rewind(0)
                self._append(known)

    def _chain(self, ids: Sequence[int], last: int = 1) -> tuple[Tensor, dict[int, Tensor]]:
        """One pass over ``ids`` behind what is cached: logits of the ``last`` of them, hidden states of all."""
        target, start, rows = self.target, self.length, len(ids)
        places = list(range(start, start + rows))
        far = self._long and places[-1] < target.boundary
        if far:  # one more row, which nobody sees: its position gives the others the long factors
            ids, places = [*ids, ids[-1]], [*places, target.boundary]
        mask = self._chain_mask(len(ids), start)
        positions = to_device([places], target.device)
        logits, hidden = target.run(
            to_device([list(ids)], target.device), positions, mask, self._cache.cache, self.taps, last + far, embed=self._embed
        )
        return logits[:last], {layer: states[:rows] for layer, states in hidden.items()}

    def _chain_mask(self, tokens: int, start: int) -> Any:
        """Causal mask [tokens, kv] over cache and chain. An empty cache needs none: the model makes its own."""
        if start == 0:
            return None
        target = self.target
        column = torch.arange(self._cache.width(tokens), device=target.device)
        row = torch.arange(start, start + tokens, device=target.device)
        return target.mask(column[None, :] <= row[:, None], start, range(tokens))

    def score(self, tree: DraftTree) -> TargetPass:
        """One pass over the tree; the committed length stays until :meth:`keep`."""
        return TargetPass(*self._scored(tree))

    def _scored(self, tree: DraftTree) -> tuple[Tensor, Mapping[int, Tensor]]:
        if self.target.boundary:
            self._reach(self.length + 1)
            self._ids, self._tree = self._ids[: self.length], tree
        if self._graph is not None:
            return self._graph(tree, self.length)
        target, nodes, start = self.target, len(tree), self.length
        positions = to_device([[start + depth for depth in tree.shape.depths]], target.device)
        mask = None
        if nodes > 1 or SLIDING in target.kinds:
            mask = target.mask(tree_attention_mask(tree, start, start + nodes, nodes, target.device), start, tree.shape.depths)
        return target.run(tree.tokens[None], positions, mask, self._cache.cache, self.taps, embed=self._embed)

    def keep(self, path: Sequence[int]) -> None:
        """Keep the entries of these nodes (root first) of the last tree."""
        if self._tree is not None:
            self._ids += [self._tree.host_tokens[node] for node in path]
        self._cache.keep(path)

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self._cache.rewind(length)

    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        """Committed keys and values of every layer, for audits."""
        return self._cache.tensors()

    def close(self) -> None:
        """Drop the cache; in the graph tier it goes back to the model, with its graphs."""
        graph, self._graph = self._graph, None
        if graph is not None:
            if self._embed is not None:  # captured too, and of no use to another run
                graph.lease.forget(graph.variant)
            LEASES.give(self.target.model, graph.lease)
        self._cache = GrowingCache(self.target.alike, 1)
