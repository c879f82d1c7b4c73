"""Fused decoder for Llama and Qwen architectures: a cheaper copy of a model, with few operator calls per pass.

Matrices may be quantised, layers left out, and the attention of several layers computed in parallel from one input. Norm weights
stay separate, because they equalise a quantised matrix's inputs; layers with one input share one norm, and their matrices absorb
the differences. Axis names: ``row``, ``hidden``,
``head``, ``kv`` (key-value heads), ``size`` (of a head), ``column`` (of the cache), ``layer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.decoder_layer import Layout, Product
from specviz.drafting.networks.rotary import Rotating, table, turn
from specviz.engine.interfaces import TargetPass
from specviz.engine.stop import chunks
from specviz.engine.tiers import tree_attention_mask
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain

_AT_ONCE = 512
"""Initial number of positions in the rotary table, which grows on demand."""
PIECE = 128
"""Number of prompt tokens per pass."""
TREE_ROOM = 64
AT_FIRST = 1024
"""Initial number of columns of a cache, which may grow."""


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder. ``layers``: number of layers of the full model. ``rates``: rotary inverse frequencies in radians per
    position."""

    vocab_size: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    layers: int
    eps: float
    context_length: int
    rates: tuple[float, ...]
    scaling: float = 1.0


@dataclass(frozen=True)
class LayerWeights:
    """Weights of layer ``number``.

    ``entering``: queries, keys and values, stacked [.., hidden]. ``widening``: gate and up, stacked. ``before``, ``between``
    [hidden]: weights of the norms before these two. ``turning`` [head, size]: norm weights of queries and keys, if any. The four
    matrices become products (:data:`.attention.Product`) when the layer is packed.
    """

    number: int
    before: Tensor
    entering: Any
    leaving: Any
    between: Tensor
    widening: Any
    narrowing: Any
    device: torch.device
    bias: Tensor | None = None
    turning: Tensor | None = None


class FusedCache:
    """Keys and values of one run [layer, 2, kv, column, size], growing by doubling.

    If all layers are on one device, the cache is one tensor; otherwise one tensor per layer, on the layer's device.
    """

    def __init__(self, decoder: FusedDecoder, capacity: int) -> None:
        shape, places = decoder.shape, [layer.device for layer in decoder.layers]
        size = (2, shape.kv_heads, capacity, shape.head_size)
        self.length = 0
        self.whole: Tensor | None = None
        if len(set(places)) == 1:
            self.whole = torch.zeros((len(places), *size), dtype=decoder.dtype, device=places[0])
            self.layers = list(self.whole)
        else:
            self.layers = [torch.zeros(size, dtype=decoder.dtype, device=place) for place in places]

    def reserve(self, columns: int) -> None:
        """Make room for this many columns; existing columns are kept."""
        capacity = self.layers[0].shape[2]
        if columns <= capacity:
            return
        more = max(columns, 2 * capacity) - capacity
        if self.whole is not None:
            self.whole = F.pad(self.whole, (0, 0, 0, more))
            self.layers = list(self.whole)
        else:
            self.layers = [F.pad(layer, (0, 0, 0, more)) for layer in self.layers]

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Keep the last pass's entries of these nodes (root first, ascending) after the committed columns; drop the others."""
        first = next((place for place, node in enumerate(path) if node != place), len(path))
        if first < len(path):
            start, end = self.length + first, self.length + len(path)
            source = torch.tensor([self.length + node for node in path[first:]])
            for layer in self.layers:
                layer[:, :, start:end] = layer.index_select(2, source.to(layer.device))
        self.length += len(path)


class FusedDecoder(Rotating):
    """Frozen weights, shared between runs, which keep their own :class:`FusedCache`."""

    def __init__(
        self,
        shape: DecoderShape,
        layers: Sequence[LayerWeights],
        ends: tuple[Tensor, Tensor, Tensor],
        layouts: tuple[Layout, Layout],
        dtype: torch.dtype,
        group: int = 1,
    ) -> None:
        """``ends``: embedding, last norm weight and head. ``layouts``: packing of the layers and of the head.

        ``dtype``: dtype of activations. ``group``: maximum number of layers whose attention runs in parallel.
        """
        self.shape, self.dtype = shape, dtype
        self._embedding, self._last = ends[0], ends[1].to(dtype)
        layout, self._head = layouts[0], layouts[1](ends[2])
        self.layers = [_lay_out(layer, layout, dtype) for layer in layers]
        self.spans = spans(len(self.layers), group)
        self._singly = spans(len(self.layers), 1)
        self._joint = {
            span: _join([layers[place] for place in span], layout, dtype)
            for span in self.spans
            if len(span) > 1 and len({layers[place].device for place in span}) == 1
        }
        self._table = partial(table, torch.tensor(shape.rates, dtype=torch.float64), scale=shape.scaling)
        self.rotary = self._table(_AT_ONCE).to(self.device, dtype)

    @property
    def device(self) -> torch.device:
        """Device of tokens and logits."""
        return self._embedding.device

    def open(self, capacity: int) -> FusedCache:
        """Return an empty cache with room for ``capacity`` columns."""
        return FusedCache(self, capacity)

    @torch.inference_mode()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: FusedCache,
        mask: Tensor | None,
        taps: Sequence[int] = (),
        together: bool = False,
        last: int = 0,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return logits [row, vocab] (only of the ``last`` rows, if set) and the hidden states ``taps``.

        Keys and values are written after the cache's ``length``, which stays unchanged. ``mask``: bool [row, column] up to and
        including the new columns; None if each row attends to all of them. ``together``: whether the attention of each span runs
        in parallel. Hidden states are numbered as in transformers and have the embedding's dtype.
        """
        x = F.embedding(tokens, self._embedding).to(self.dtype)
        turns, hidden, tap_queue = self.turns(positions)[:, :, None], {}, sorted(taps)
        for span in self.spans if together else self._singly:
            while tap_queue and tap_queue[0] <= self.layers[span[0]].number:
                hidden[tap_queue.pop(0)] = x.to(self._embedding)
            x = self._run(x, span, turns, cache, mask)
        x = self._norm(x.to(self.device), self._last)
        hidden.update({tap: x.to(self._embedding) for tap in tap_queue})
        return self._head(x[-last:]), hidden

    def _run(self, x: Tensor, span: Sequence[int], turns: Tensor, cache: FusedCache, mask: Tensor | None) -> Tensor:
        """Run the attention of several layers from the same input, then each layer's output projection and feed-forward.

        On one device, the attentions are one call; on several devices, they run concurrently.
        """
        layers, joint = [self.layers[place] for place in span], self._joint.get(tuple(span))
        if joint is not None:
            shared, product, biases = joint
            inputs = x.to(layers[0].device)
            mixed = product(self._norm(inputs, shared)).view(len(x), len(layers), -1)
            mixed = mixed if biases is None else mixed + biases
            attentions = list(self._attend(mixed, span, turns.to(inputs.device), cache, mask))
        else:
            attentions = []
            for place, layer in zip(span, layers, strict=True):
                mixed = layer.entering(self._norm(x.to(layer.device), layer.before))
                mixed = mixed if layer.bias is None else mixed + layer.bias
                attentions.append(self._attend(mixed[:, None], [place], turns.to(layer.device), cache, mask)[0])
        for layer, attended in zip(layers, attentions, strict=True):
            x = x.to(layer.device) + layer.leaving(attended)
            gate, up = layer.widening(self._norm(x, layer.between)).chunk(2, dim=-1)
            x = x + layer.narrowing(F.silu(gate) * up)
        return x

    def _attend(self, mixed: Tensor, span: Sequence[int], turns: Tensor, cache: FusedCache, mask: Tensor | None) -> Tensor:
        """Return each layer's attention output [layer, row, head * size] of mixed [row, layer, (head + 2 kv) * size]; fills the
        cache."""
        shape, rows = self.shape, len(mixed)
        heads, kv = shape.heads, shape.kv_heads
        split = mixed.view(rows, len(span), heads + 2 * kv, shape.head_size)
        turned = split[:, :, : heads + kv]
        norms = [self.layers[place].turning for place in span]
        if norms[0] is not None:
            turned = F.rms_norm(turned, (shape.head_size,), eps=shape.eps)
            turned = turned * torch.stack([norm for norm in norms if norm is not None])
        turned = turn(turned, turns[0, :, :, None], turns[1, :, :, None])
        single = len(span) == 1
        both = cache.layers[span[0]][None] if single or cache.whole is None else cache.whole[span[0] : span[-1] + 1]
        start, end = cache.length, cache.length + rows
        both[:, 0, :, start:end] = turned[:, :, heads:].permute(1, 2, 0, 3)
        both[:, 1, :, start:end] = split[:, :, heads + kv :].permute(1, 2, 0, 3)
        shaped = turned[:, :, :heads].reshape(rows, len(span), kv, heads // kv, shape.head_size)
        shaped = shaped.permute(1, 2, 3, 0, 4).reshape(len(span), kv, -1, shape.head_size)
        head_mask = None if mask is None else mask.to(both.device).repeat(heads // kv, 1)
        attended = F.scaled_dot_product_attention(shaped, both[:, 0, :, :end], both[:, 1, :, :end], attn_mask=head_mask)
        attended = attended.view(len(span), kv, heads // kv, rows, shape.head_size)
        return attended.permute(0, 3, 1, 2, 4).reshape(len(span), rows, heads * shape.head_size)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.eps)


def spans(layers: int, group: int) -> tuple[tuple[int, ...], ...]:
    """Return spans of layers whose attention runs in parallel: groups of up to ``group`` between the first and the last layer.

    The first and the last layer are spans of one. Spans are in the order of the layers.
    """
    inner = list(range(1, layers - 1))
    groups = [tuple(inner[start : start + group]) for start in range(0, len(inner), group)]
    ends = [(0,), (layers - 1,)] if layers > 1 else [(0,)]
    return (ends[0], *groups, *ends[1:])


def _lay_out(layer: LayerWeights, layout: Layout, dtype: torch.dtype) -> LayerWeights:
    place = layer.device
    return replace(
        layer,
        before=layer.before.to(place, dtype),
        entering=layout(layer.entering.to(place)),
        leaving=layout(layer.leaving.to(place)),
        between=layer.between.to(place, dtype),
        widening=layout(layer.widening.to(place)),
        narrowing=layout(layer.narrowing.to(place)),
        bias=None if layer.bias is None else layer.bias.to(place, dtype),
        turning=None if layer.turning is None else layer.turning.to(place, dtype),
    )


def _join(layers: Sequence[LayerWeights], layout: Layout, dtype: torch.dtype) -> tuple[Tensor, Product, Tensor | None]:
    """Return a shared norm weight, one product for layers with the same input, and their biases [layer, …].

    The rest of each layer's norm weight is folded into the rows of the product.
    """
    place = layers[0].device
    befores = torch.stack([layer.before.to(place, dtype) for layer in layers])
    shared = befores.abs().mean(0).clamp_min(torch.finfo(dtype).tiny)
    rows = [layer.entering * (own / shared).to(layer.entering.dtype) for layer, own in zip(layers, befores, strict=True)]
    biases = [layer.bias.to(dtype) for layer in layers if layer.bias is not None]
    return shared, layout(torch.cat(rows)), torch.stack(biases) if biases else None


class FusedSession:
    """Session of one run, with a target's interface. ``taps``: hidden states to return, numbered as in the full model."""

    def __init__(self, decoder: FusedDecoder, capacity: int, taps: Sequence[int] = ()) -> None:
        self.decoder = decoder
        self.taps = tuple(taps)
        self._cache = decoder.open(min(capacity, AT_FIRST) + TREE_ROOM)

    @property
    def length(self) -> int:
        return self._cache.length

    def padded(self, nodes: int) -> int:
        return nodes

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache. Returns logits of the last position, [1, vocab], and hidden states [position, hidden]."""
        passes = []
        for start, end in chunks(len(ids), PIECE):
            piece = list(ids[start:end])
            passes.append(self._run(DraftTree.of(piece, chain(len(piece) - 1).parents, self.decoder.device), 1))
            self._cache.length += len(piece)
        hidden = {tap: torch.cat([part.hidden[tap] for part in passes]) for tap in self.taps}
        return TargetPass(passes[-1].logits, hidden)

    def score(self, tree: DraftTree) -> TargetPass:
        return self._run(tree, 0)

    def _run(self, tree: DraftTree, last: int, together: bool = False) -> TargetPass:
        start, nodes, device = self.length, len(tree), self.decoder.device
        self._cache.reserve(start + nodes)
        self.decoder.reach(start + max(tree.shape.depths) + 1)
        places = to_device([start + depth for depth in tree.shape.depths], device)
        mask = tree_attention_mask(tree, start, start + nodes, nodes, device) if nodes > 1 else None
        return TargetPass(*self.decoder(tree.tokens, places, self._cache, mask, self.taps, together, last))

    def keep(self, path: Sequence[int]) -> None:
        self._cache.keep(path)

    def rewind(self, length: int) -> None:
        self._cache.length = min(length, self.length)

    def close(self) -> None:
        self._cache = self.decoder.open(1)
