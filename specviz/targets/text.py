"""Causal language model as a target, and its sessions: a transformers decoder with full or sliding-window attention."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.engine.attention import GROUPED, additive
from specviz.engine.cache import CACHE_ARGUMENT, KeyValues
from specviz.engine.cached import cached
from specviz.engine.interfaces import TargetPass
from specviz.engine.regions import obstacle
from specviz.engine.stop import chunks
from specviz.engine.tiers import (
    CACHE_POOL,
    TREE_ROOM,
    Forward,
    GraphRunner,
    Outputs,
    PooledCache,
    choose_tier,
    padded_width,
    tree_attention_mask,
)
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.errors import ContextFull, ModelUnavailable
from specviz.targets.decoder import Decoder, refusal
from specviz.targets.layers import (
    FULL,
    REREADS,
    SLIDING,
    boundary_of,
    devices_of,
    layer_devices,
    layer_kinds,
    refuse_offloaded,
    rope_kinds,
    sliding_windows,
)

# A mask cannot separate a tree's branches in a recurrence, so recurrent layers are refused.
BRANCHABLE = {FULL, SLIDING}
# Kernels that accept any mask.
KERNELS = ("sdpa", "eager")
PIECES = {"cpu": 256}
"""Maximum number of prompt tokens per pass, by device: half a second on one core with SmolLM2, so that a stop request takes
effect soon.

For 1,500 tokens, twelve passes cost 50 % more than one pass, six passes 20 % more.
"""
PIECE = 4096
"""Maximum number of prompt tokens per pass on other devices."""
CHUNK_EQUIVALENT = 1024
"""Number of cached tokens that cost as much as the chunk itself. Chunks shrink accordingly, down to a quarter."""
# These RoPE kinds read the largest position on the host, which a captured graph cannot do.
HOST_ROPE = {"dynamic", "longrope"}


def unsupported_reason(model: Any, kinds: Sequence[str]) -> str:
    """Return the reason why this model cannot verify trees, or ""."""
    unknown = sorted(set(kinds) - BRANCHABLE)
    if unknown or getattr(model, "_is_stateful", False):
        what = f"layers of kind {', '.join(unknown)}" if unknown else "recurrent layers"
        return f"has {what}, which cannot hold the branches of a draft tree; choose a target with attention layers only"
    config = model.config.get_text_config()
    parameters = inspect.signature(model.forward).parameters
    if "shared_kv_states" in parameters:
        return "drafts from the states of another model and cannot decode alone; choose that model"
    if getattr(config, "is_decoder", True) is False:
        return "is an encoder (is_decoder is false in its config.json), which attends to later tokens; choose a decoder"
    if "position_ids" not in parameters or getattr(config, "alibi", False):
        return "takes no position ids, so two branches could not share a depth; choose a target with rotary positions"
    if CACHE_ARGUMENT not in parameters:
        return "has no key-value cache to which a pass could add a tree; choose a target that has one"
    if int(getattr(config, "n_recurrent_loops", 1)) > 1:
        return "runs its layers in loops, each with its own keys and values; choose a target without loops"
    if "local" in getattr(config, "attention_layers", ()):
        return "has local attention that counts cache slots, not positions; choose a target with full attention in all layers"
    if len(windows := sliding_windows(config, kinds)) > 1:
        return "has sliding windows that differ between its layers; choose a target with one window"
    if None in windows:
        return "has sliding layers but no sliding_window; choose a target whose config.json has one"
    masks = hasattr(sys.modules[type(model).__module__], "create_sliding_window_causal_mask")
    if windows and not masks and max(one or 0 for one in windows) < int(getattr(config, "max_position_embeddings", 0) or 1 << 20):
        return (
            "has a sliding window that its class in transformers applies to the cache but not within a pass, so its text would "
            "depend on the prefill; choose another target"
        )
    kernel = model.config._attn_implementation
    if kernel not in (*KERNELS, GROUPED):
        return f"runs the attention kernel {kernel}, which ignores a tree's mask; load it with {' or '.join(KERNELS)}"
    return ""


def rope_obstacle(config: Any) -> str:
    """Return the reason why this model's rotary positions cannot be captured in a graph, or ""."""
    kinds = sorted(HOST_ROPE.intersection(rope_kinds(config)))
    return f"its {kinds[0]} rotary positions are computed on the host" if kinds else ""


Embedding = Callable[[Tensor], Tensor]
"""Function from token ids [1, row] to input embeddings [1, row, hidden]."""


class LanguageTarget:
    """Target around a loaded model, shared between runs; the state of a run is in its session.

    ``dtype``: dtype of the outputs. ``number_format``: dtype of the matrices.
    """

    def __init__(self, model: Any, name: str, eos_ids: Sequence[int]) -> None:
        self.model = model
        self.name = name
        self.config = model.config.get_text_config()
        self.eos_ids = frozenset(eos_ids)
        self.vocab_size = int(self.config.vocab_size)
        self.context_length = int(getattr(self.config, "max_position_embeddings", 0) or 1 << 20)
        self.device = model.device
        self.number_format: torch.dtype = getattr(model, "number_format", model.dtype)
        self.dtype = torch.float32 if self.number_format == torch.int8 else model.dtype

    def refuse(self, capacity: int) -> None:
        """Raise ContextFull if ``capacity`` exceeds the model's context."""
        if capacity > self.context_length:
            raise ContextFull(f"{capacity} tokens do not fit the {self.context_length}-token context of {self.name}.")


class TextTarget(LanguageTarget):
    """Target with only attention layers.

    ``variant``: distinguishes passes of one model that need separate captured graphs.
    """

    variant: Hashable = ()
    embed: Embedding | None = None
    """Replacement for the model's embedding table, in a copy of the target for one session."""
    masked = False
    """Whether a pass over an empty cache needs an explicit causal mask; by default the model makes it."""

    def __init__(self, model: Any, name: str, eos_ids: Sequence[int], tier: str = "auto") -> None:
        super().__init__(model, name, eos_ids)
        self.piece = PIECES.get(self.device.type, PIECE)
        self.attention = str(model.config._attn_implementation)
        self.kinds = layer_kinds(self.config)
        self.boundary = boundary_of(self.config)
        self.rereads = str(self.config.model_type) in REREADS
        reason = unsupported_reason(model, self.kinds)
        if reason:
            raise ModelUnavailable(f"{name} {reason}.")
        refuse_offloaded(model, name)
        self.window = next(iter(sliding_windows(self.config, self.kinds)), None)
        self.spread = devices_of(model)
        # Layers with equal labels share one tensor of the cache.
        self.alike = tuple(zip(self.kinds, layer_devices(model, len(self.kinds)) or self.kinds, strict=True))
        # Models with a list of layer types take one mask per type; models whose layers all slide take one mask.
        self._one_mask = not getattr(self.config, "layer_types", None)
        plain = self._plain()
        self.tier, self.warning = choose_tier(tier, self.device, self._obstacle(), plain)
        self.decoder: Decoder | None = None
        if self.tier == "graph" and not plain and (tier == "compiled" or self.device.type == "cuda"):
            # joins matrices, so it must come before this model's first capture
            decoder = cached(model, "regions", lambda: Decoder(model))
            self.decoder = decoder if tier == "compiled" else None

    def _plain(self) -> str:
        """Return the reason why this model's passes cannot be compiled, or an empty string."""
        return obstacle(self.device) or refusal(self.model)

    def _obstacle(self) -> str:
        """Return the reason why this model cannot be captured in a graph, or ""."""
        if self.spread:
            return f"its layers are on several devices ({', '.join(self.spread)}), and a graph is captured on one"
        if SLIDING in self.kinds:
            return "its sliding-window layers need a separate mask in each pass"
        return rope_obstacle(self.config)

    def open(self, capacity: int, taps: Sequence[int] = ()) -> TextSession:
        """Open a fresh session with room for ``capacity`` committed tokens and a tree.

        Raises ContextFull beyond the model's context.
        """
        self.refuse(capacity)
        return TextSession(self, capacity, tuple(taps))

    def mask(self, mask: Tensor, distance: Callable[[], Tensor]) -> Any:
        """Convert a bool mask [batch, row, kv] to the model's form: additive for the eager kernel, a dict if some layers slide.

        ``distance``: function that returns the number of positions from a column to a row, [batch, row, kv].
        """
        if SLIDING not in self.kinds:
            return self.finished(mask)
        assert self.window is not None
        near = self.finished(mask & (distance() < self.window))
        return near if self._one_mask else {FULL: self.finished(mask), SLIDING: near}

    def finished(self, mask: Tensor) -> Tensor:
        """Convert a bool mask [batch, row, kv] to [batch, 1, row, kv], additive for the eager kernel."""
        return (additive(mask, self.dtype) if self.attention == "eager" else mask)[:, None]

    def run(
        self, tokens: Tensor, positions: Tensor, mask: Any, cache: Any, taps: Sequence[int], last: int = 0, **more: Any
    ) -> Outputs:
        """Run the model over ``tokens`` [1, row]. Returns logits [row, vocab] (only of the ``last`` rows, if set) and taps.

        ``more``: model-specific keywords.
        """
        logits, hidden = self.forward(tokens, positions, mask, cache, taps, last, **more)
        return logits[0], {layer: states[0] for layer, states in hidden.items()}

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Any, cache: Any, taps: Sequence[int], last: int, **more: Any
    ) -> Outputs:
        """Run the model over several texts: ``tokens`` [batch, row], logits [batch, row, vocab]; otherwise like :meth:`run`."""
        options = {"output_hidden_states": list(taps)} if taps else {}
        with torch.inference_mode():
            inputs = {"input_ids": tokens} if self.embed is None else {"inputs_embeds": self.embed(tokens)}
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
        return output.logits, {layer: output.hidden_states[layer].to(self.dtype) for layer in taps}


def joined(passes: Sequence[TargetPass]) -> TargetPass:
    """Join passes over consecutive chunks of a text: the last pass's logits, and all hidden states."""
    if len(passes) == 1:
        return passes[0]
    hidden = {layer: torch.cat([part.hidden[layer] for part in passes]) for layer in passes[-1].hidden}
    return TargetPass(passes[-1].logits, hidden)


class CachedSession(ABC):
    """Session of a target with a cache of keys and values, for all modalities.

    The cache grows in the eager tier and is pooled in the graph tier.
    Layers with equal entries in ``target.alike`` share one tensor.
    """

    target: Any

    def __init__(self, capacity: int, taps: tuple[int, ...]) -> None:
        self.taps = taps
        self._cache: KeyValues
        self.graph: GraphRunner | None = None
        if self.target.tier == "graph":
            self.graph = self._runner(CACHE_POOL.acquire(self.target.model, self.target.alike, capacity + TREE_ROOM))
            self._cache = self.graph.pooled.cache
        else:
            self._cache = KeyValues(self.target.alike, capacity + TREE_ROOM)

    @abstractmethod
    def _runner(self, pooled: PooledCache) -> GraphRunner:
        """Build the padded passes over the acquired cache."""

    @abstractmethod
    def _scored(self, tree: DraftTree) -> Outputs:
        """Return logits and hidden states of one pass over the tree."""

    @property
    def length(self) -> int:
        return self._cache.length

    def padded(self, nodes: int) -> int:
        """Return the number of rows of a pass over ``nodes`` in this tier, padding included."""
        return padded_width(nodes) if self.graph else nodes

    def score(self, tree: DraftTree) -> TargetPass:
        return TargetPass(*self._scored(tree))

    def keep(self, path: Sequence[int]) -> None:
        self._cache.keep(path)

    def rewind(self, length: int) -> None:
        self._cache.rewind(length)

    def close(self) -> None:
        """Drop the cache; in the graph tier, release it with its graphs into the model's pool."""
        graph, self.graph = self.graph, None
        if graph is not None:
            CACHE_POOL.release(self.target.model, graph.pooled)
        self._cache = KeyValues(self.target.alike, 1)


class TextSession(CachedSession):
    """Session on a :class:`TextTarget`.

    If rotary factors depend on the text's length, a pass uses the factors for the text up to the root, as in ``generate``.
    Drafts that the engine judges do not cross ``boundary``.
    """

    target: TextTarget

    def __init__(self, target: TextTarget, capacity: int, taps: tuple[int, ...]) -> None:
        self.target = target
        # For a target with a boundary: the cached ids, whether they have the long factors, and the last scored tree.
        self._ids: list[int] = []
        self._long = False
        self._tree: DraftTree | None = None
        super().__init__(capacity, taps)

    def _runner(self, pooled: PooledCache) -> GraphRunner:
        target, taps, decoder = self.target, self.taps, self.target.decoder

        def fused(width: int, columns: int) -> Forward | None:
            whole = columns == pooled.cache.capacity
            if decoder is None or target.embed is not None or whole or not decoder.regions.ready(width, columns):
                return None
            return lambda tokens, places, mask, _: decoder.forward(tokens, places, mask, pooled.cache, taps)

        def forward(tokens: Tensor, places: Tensor, mask: Tensor, _: Tensor) -> Outputs:
            return target.run(tokens, places[None], target.finished(mask[None]), pooled.cache.cache, taps)

        variant = target.variant if target.embed is None else ("embeddings", id(target.embed))
        return GraphRunner(forward, pooled, taps, target.device, variant, fused=fused)

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache. Returns logits of the last position, [1, vocab], and hidden states [position, hidden]."""
        self._choose_factors(self.length + len(ids) + 1)  # a root is scored next
        return self._append(ids)

    def _append(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache with the current rotary factors. Returns the same as :meth:`prefill`."""
        if self.target.boundary:
            self._ids = [*self._ids[: self.length], *ids]
        return joined([self._read(ids[start:end]) for start, end in self._pieces(len(ids))])

    def _pieces(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of each prefill chunk of the next ``tokens``; chunks take about the same time."""
        piece, behind = self.target.piece, CHUNK_EQUIVALENT + self.length
        return chunks(tokens, lambda start: max(1, piece // 4, piece * CHUNK_EQUIVALENT // (behind + start)))

    def _read(self, ids: Sequence[int]) -> TargetPass:
        """Run one pass over the next tokens of a text, and commit them."""
        scored = TargetPass(*self._chain(ids))
        self._cache.advance(len(ids))
        return scored

    def _choose_factors(self, tokens: int) -> None:
        """Choose the rotary factors for a text of ``tokens`` tokens.

        If the factors change, the cached text is prefilled again in models where transformers does so.
        """
        boundary = self.target.boundary
        long = 0 < boundary < tokens
        if long != self._long:
            self._long = long
            if self.target.rereads and self.length:
                known = self._ids[: self.length]
                self._cache.rewind(0)
                self._append(known)

    def _chain(self, ids: Sequence[int], last: int = 1) -> Outputs:
        """Run one pass over ``ids`` after the cached tokens. Returns the logits of the ``last`` ids, and all hidden states."""
        target, start, rows = self.target, self.length, len(ids)
        places = list(range(start, start + rows))
        far = self._long and places[-1] < target.boundary
        if far:  # one more row, which no other row attends to, selects the long factors for all rows
            ids, places = [*ids, ids[-1]], [*places, target.boundary]
        mask = self._chain_mask(len(ids), start)
        positions = to_device([places], target.device)
        logits, hidden = target.run(
            to_device([list(ids)], target.device), positions, mask, self._cache.cache, self.taps, last + far
        )
        return logits[:last], {layer: states[:rows] for layer, states in hidden.items()}

    def _chain_mask(self, tokens: int, start: int) -> Any:
        """Return the causal mask [tokens, kv] over cache and chain; None for an empty cache if the model makes the mask."""
        target = self.target
        if start == 0 and not target.masked:
            return None
        column = torch.arange(start + tokens, device=target.device)
        row = torch.arange(start, start + tokens, device=target.device)
        distance = row[None, :, None] - column
        return target.mask(distance >= 0, lambda: distance)

    def _scored(self, tree: DraftTree) -> Outputs:
        if self.target.boundary:
            self._choose_factors(self.length + 1)
            self._ids, self._tree = self._ids[: self.length], tree
        if self.graph is not None:
            return self.graph(tree, self.length)
        target, nodes, start = self.target, len(tree), self.length
        positions = to_device([[start + depth for depth in tree.shape.depths]], target.device)
        mask = None
        if nodes > 1 or SLIDING in target.kinds:
            seen = tree_attention_mask(tree, start, start + nodes, nodes, target.device)
            columns = torch.arange(start, device=target.device)
            mask = target.mask(seen[None], lambda: positions[:, :, None] - torch.cat([columns, positions[0]]))
        return target.run(tree.tokens[None], positions, mask, self._cache.cache, self.taps)

    def keep(self, path: Sequence[int]) -> None:
        """Keep the cache entries of these nodes (root first) of the last tree."""
        if self._tree is not None:
            self._ids += [self._tree.host_tokens[node] for node in path]
        super().keep(path)

    def close(self) -> None:
        """Close the session. Graphs of a run with its own embeddings are dropped, because no other run can use them."""
        if self.graph is not None and self.target.embed is not None:
            self.graph.pooled.forget(self.graph.variant)
        super().close()
