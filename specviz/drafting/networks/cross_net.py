"""Cross-attention drafter network: self-attention, and gated cross-attention to the target's features, DREAM (arXiv 2505.19201).

Three layers: a decoder layer over the target's input embeddings (pictures included), a cross-attention layer to the target's last
hidden states (here called thoughts), and another decoder layer. The row of token i reads thoughts up to token i - 1. Its output
predicts the thought at token i, so the target's head maps it to the distribution of token i + 1. Both additions of the
cross-attention layer to the row are scaled by tanh of a gate; with gates of zero only the two decoder layers remain.

While drafting: committed tokens enter all caches from the target's own embeddings and thoughts. A drafted node enters the first
and the last layer with its token's embedding, and the thoughts with its parent's output; all of these are dropped after the
round. In the cross-attention a node sees column 0, the committed columns, and *its own* ancestors: without that mask siblings
would leak into each other.
Axis names: ``row``, ``hidden``, ``head``, ``kv`` (heads of keys), ``size`` (of a head), ``column`` (of a cache).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.attention import KeyValues, Layout, Product, plain
from specviz.drafting.networks.attention import attend as attend_cached
from specviz.drafting.networks.feature_net import Attention, FeatureConfig, FeedForward, Norm, attend
from specviz.drafting.networks.network import Network
from specviz.drafting.networks.rotary import table, turn

NOTHING = 1
"""Number of columns of zeros before the thoughts, the only ones visible to the first row."""


@dataclass(frozen=True)
class CrossConfig(FeatureConfig):
    """Sizes as in :class:`FeatureConfig`. ``taps`` are the target's input embeddings (0) and its last hidden state. ``keep`` is
    the fraction of visual tokens kept in training: those with the most attention in the target's last layer.

    The defaults are those of the networks trained here; the authors' release differs in the positions of norms and in row 0.
    """

    keep: float = 0.75
    entry_norm: bool = True
    """Whether a norm precedes the first layer."""
    inner_norms: bool = False
    """Whether the cross-attention and the last layer normalise their inputs."""
    sink: bool = True
    """Whether rows see a column of zeros beside the thoughts. Without it the first row, which no thought precedes, reads the mean
    of all the prompt's thoughts: the result of a softmax whose entries are all masked."""


class Plain(nn.Module):
    """A decoder layer over rows."""

    def __init__(self, config: FeatureConfig, normed: bool = False) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.post_attention_layernorm = Norm(config.hidden, config.eps)
        if normed:
            self.input_layernorm = Norm(config.hidden, config.eps)

    @property
    def entry(self) -> Norm | None:
        """Norm of the layer's input, if any."""
        norm: Norm | None = getattr(self, "input_layernorm", None)
        return norm

    def entering(self, x: Tensor) -> Tensor:
        """Return the attention's input from rows [row, hidden]."""
        return x if self.entry is None else self.entry(x)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output from rows and their attention."""
        x = x + self.self_attn.o_proj(attended)
        return x + self.mlp(self.post_attention_layernorm(x))


class Reading(Plain):
    """Gated cross-attention: queries from rows, keys and values from thoughts, normalised by head."""

    def __init__(self, config: FeatureConfig, normed: bool = False) -> None:
        super().__init__(config, normed)
        self.q_norm = Norm(config.head_size, config.eps)
        self.k_norm = Norm(config.head_size, config.eps)
        self.gates = nn.Parameter(torch.zeros(2))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """As :meth:`Plain.finish`, with both additions scaled by gates."""
        first, second = self.gates.tanh()
        x = x + first * self.self_attn.o_proj(attended)
        return x + second * self.mlp(self.post_attention_layernorm(x))


class CrossNet(Network):
    """The network for training. ``embedding`` and ``head`` [vocab, hidden] are the target's own, frozen and shared."""

    title, shape = "cross-attention drafter", CrossConfig
    head: Tensor

    def __init__(self, config: CrossConfig, embedding: Tensor, head: Tensor, draft_ids: Tensor | None = None) -> None:
        super().__init__(config, embedding, head, draft_ids, config.angles, config.window)
        self.enter = Norm(config.hidden, config.eps) if config.entry_norm else nn.Identity()
        inner = config.inner_norms
        self.first, self.reading, self.last = Plain(config), Reading(config, inner), Plain(config, inner)
        self.norm = Norm(config.hidden, config.eps)

    def runtime(self, layout: Layout = plain) -> CrossRuntime:
        """Return the network laid out for drafting."""
        return CrossRuntime(self, layout)

    def thoughts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, each [row, kv, size], of the target's last hidden states or of this network's outputs."""
        config, attention = self.config, self.reading.self_attn
        keys = attention.k_proj(features).view(-1, config.kv_heads, config.head_size)
        return self.reading.k_norm(keys), attention.v_proj(features).view(-1, config.kv_heads, config.head_size)

    def nothing(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of column 0: zeros."""
        zeros = self.embedding.new_zeros(NOTHING, self.config.kv_heads, self.config.head_size)
        return zeros, zeros

    def keys_values(self, layer: Plain, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated keys and values, each [row, kv, size], of a decoder layer's input."""
        config, attention, x = self.config, layer.self_attn, layer.entering(x)
        keys = attention.k_proj(x).view(-1, config.kv_heads, config.head_size)
        return self.turn(keys, positions), attention.v_proj(x).view(-1, config.kv_heads, config.head_size)

    def within(self, layer: Plain, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor, hidden_from: Tensor) -> Tensor:
        """Run a decoder layer over rows [row, hidden], given all keys and values [column, kv, size], those of the rows included.

        ``hidden_from`` is bool [row, column]: the columns hidden from a row.
        """
        queries = layer.self_attn.q_proj(layer.entering(x)).view(-1, self.config.heads, self.config.head_size)
        return layer.finish(x, attend(self.turn(queries, positions), keys, values, hidden_from))

    def across(self, x: Tensor, keys: Tensor, values: Tensor, hidden_from: Tensor) -> Tensor:
        """Run the cross-attention over rows [row, hidden]; keys and values [column, kv, size] are those of the thoughts, with
        zeros in column 0."""
        return self.reading.finish(x, attend(self._queries(x), keys, values, hidden_from))

    def weights(self, x: Tensor, keys: Tensor, hidden_from: Tensor) -> Tensor:
        """Return each row's attention to each column, averaged over heads, [row, column], for display."""
        config, queries = self.config, self._queries(x)
        shaped = queries.view(len(queries), config.kv_heads, -1, config.head_size)
        scores = torch.einsum("rkgs,cks->kgrc", shaped, keys) * config.head_size**-0.5
        return scores.masked_fill(hidden_from, float("-inf")).softmax(-1).mean((0, 1))

    def _queries(self, x: Tensor) -> Tensor:
        attention, config = self.reading.self_attn, self.config
        x = self.reading.entering(x)
        return self.reading.q_norm(attention.q_proj(x).view(-1, config.heads, config.head_size))

    def logits(self, outputs: Tensor) -> Tensor:
        """Map [row, hidden] to logits [row, support]."""
        return F.linear(outputs, self.head)

    def whole(self, embedded: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Run the network over a whole committed text: embeddings and thoughts [row, hidden] at ``positions`` [row].

        Returns its outputs, and the middle layer's outputs, each [row, hidden]. The last row's thought is unused.
        """
        self.reach(int(positions[-1]) + 1)
        rows = torch.arange(len(embedded), device=embedded.device)
        later = rows[None] > rows[:, None]
        x = self.enter(embedded)
        x = self.within(self.first, x, positions, *self.keys_values(self.first, x, positions), later)
        keys, values = (torch.cat(pair) for pair in zip(self.nothing(), self.thoughts(features[:-1]), strict=True))
        columns = torch.arange(len(keys), device=embedded.device)
        # Column c holds the thought at row c - 1, which row r may read if c - 1 <= r - 1.
        middle = self.across(x, keys, values, columns[None] > rows[:, None])
        x = self.within(self.last, middle, positions, *self.keys_values(self.last, middle, positions), later)
        return self.norm(x), middle


class CrossCache:
    """Keys and values of one run, in three caches: of the first layer, the thoughts and the last layer."""

    def __init__(self, first: KeyValues, thoughts: KeyValues, last: KeyValues) -> None:
        self.first, self.thoughts, self.last = self._parts = first, thoughts, last

    def reserve(self, columns: int) -> None:
        """Make room for this many rows in addition to column 0."""
        for cache in self._parts:
            cache.reserve(NOTHING + columns)

    def copy(self, other: CrossCache, rows: int) -> None:
        """Copy column 0 and the first rows of another cache."""
        for cache, larger in zip(self._parts, other._parts, strict=True):
            cache.copy(larger, NOTHING + rows)

    def clear(self) -> None:
        """As :meth:`KeyValues.clear`."""
        for cache in self._parts:
            cache.clear()


class _Folded(NamedTuple):
    """One layer's matrices, with the norms' weights folded in. ``into`` computes queries, keys and values, or queries alone;
    ``normed`` is True if its input is normalised."""

    normed: bool
    into: Product
    out: Product
    up: Product
    down: Product


class CrossRuntime:
    """The network laid out for drafting, with three caches whose columns are numbered alike.

    A column belongs to a row. It holds the row's keys and values in both self-attentions, and in the cross-attention those of the
    row's thought: the target's own for committed text, else the drafter's output for the row's parent. So one mask (committed
    columns, ancestors, the row itself) keeps siblings apart in all three. Column 0 holds the prompt's first token, and zeros in
    the cross-attention.

    The folded weights are shared between runs, each with its own cache.

    With ``open_gates`` False, cross-attention is off. In a twin made by :meth:`watching`, ``watched`` collects, per call, each
    row's attention to each column, averaged over heads [row, column].
    """

    def __init__(self, net: CrossNet, layout: Layout = plain, open_gates: bool = True) -> None:
        self.config: CrossConfig = net.config
        self.draft_ids = net.draft_ids
        self.watched: list[Tensor] | None = None
        self._aside: AbstractContextManager[None] = nullcontext()
        self._net, self._layout = net, layout
        self.embedding, self.rotary = net.embedding, net.rotary
        self._first, self._last = (_fold(layer, layout, 1.0, 1.0) for layer in (net.first, net.last))
        self._entry = net.enter.weight if isinstance(net.enter, Norm) else None
        gates = net.reading.gates.tanh().tolist() if open_gates else [0.0, 0.0]
        self._open = any(gates)
        attention = net.reading.self_attn
        self._reading = _fold(net.reading, layout, *gates)._replace(into=layout(_normed(net.reading, attention.q_proj.weight)))
        self._thoughts = layout(torch.cat((attention.k_proj.weight, attention.v_proj.weight)).contiguous())
        self._q_norm, self._k_norm = net.reading.q_norm.weight, net.reading.k_norm.weight
        self._head = layout(net.head)

    def without_cross_attention(self) -> CrossRuntime:
        """Return the same drafter with closed gates."""
        return CrossRuntime(self._net, self._layout, open_gates=False)

    def watching(self, aside: AbstractContextManager[None]) -> CrossRuntime:
        """Return a twin for one run that records its rows' attention, inside the context manager ``aside``, which excludes that
        time."""
        twin = object.__new__(CrossRuntime)
        twin.__dict__.update(self.__dict__)
        twin.watched, twin._aside = [], aside
        return twin

    def open(self, capacity: int) -> CrossCache:
        """Return an empty cache with initial room for ``capacity`` rows."""
        return CrossCache(
            *(KeyValues(self.config.kv_heads, self.config.head_size, NOTHING + capacity, self.embedding) for _ in range(3))
        )

    def reach(self, positions: int) -> None:
        """Extend the rotary table to at least this length."""
        if self.rotary.shape[1] < positions:
            self.rotary = table(self.config.angles, 2 * positions).to(self.rotary)

    def fuse(self, features: Tensor) -> Tensor:
        """Return the target's last hidden states unchanged."""
        return features

    def lead(self, cache: CrossCache, embedded: Tensor, position: Tensor, features: Tensor) -> None:
        """Fill column 0 with the prompt's first token, [1, hidden] at ``position`` [1], and with zeros in the cross-attention.
        ``features`` [row, hidden] are the target's thoughts in the prompt."""
        nothing = self.embedding.new_zeros(NOTHING, self.config.kv_heads, self.config.head_size)
        cache.thoughts.put(0, nothing, nothing)
        x = self._self(self._first, self._enter(embedded), position, cache.first, 0, None)
        if self._open:
            found = torch.zeros(1, self.config.heads * self.config.head_size).to(x)
            if not self.config.sink and len(features):
                values = self._thoughts(features).unflatten(-1, (2, self.config.kv_heads, -1))[:, 1].mean(0)
                found = values.repeat_interleave(self.config.heads // self.config.kv_heads, dim=0).view(1, -1)
            x = self._finish(self._reading, x, found)
        self._self(self._last, x, position, cache.last, 0, None)

    def __call__(
        self,
        tokens: Tensor,
        features: Tensor,
        positions: Tensor,
        cache: CrossCache,
        start: int | Tensor,
        mask: Tensor | None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        """Return outputs [row, hidden] of rows, each with one thought in ``features`` [row, hidden].

        Arguments as of :class:`.feature_drafter.Stepper`, without column 0: ``mask`` is bool [row, column], None if every row
        sees all columns.
        """
        column = NOTHING + start
        padded_mask = None if mask is None else F.pad(mask, (NOTHING, 0), value=True)
        x = self._enter(F.embedding(tokens, self.embedding) if embedded is None else embedded)
        x = self._self(self._first, x, positions, cache.first, column, padded_mask)
        if self._open:
            x = self._across(x, features, cache.thoughts, column, padded_mask)
        x = self._self(self._last, x, positions, cache.last, column, padded_mask)
        return self._unit(x) * self._net.norm.weight

    def logits(self, outputs: Tensor) -> Tensor:
        """Map outputs [row, hidden] to logits [row, support]."""
        return self._head(outputs)

    def _enter(self, embedded: Tensor) -> Tensor:
        return embedded if self._entry is None else self._unit(embedded) * self._entry

    def _self(
        self, layer: _Folded, x: Tensor, positions: Tensor, cache: KeyValues, column: int | Tensor, mask: Tensor | None
    ) -> Tensor:
        config = self.config
        entering = self._unit(x) if layer.normed else x
        mixed = layer.into(entering).view(len(x), config.heads + 2 * config.kv_heads, config.head_size)
        turned = self._turn(mixed[:, : config.heads + config.kv_heads], positions)
        keys, values = cache.put(column, turned[:, config.heads :], mixed[:, config.heads + config.kv_heads :])
        return self._finish(layer, x, attend_cached(turned[:, : config.heads], keys, values, mask))

    def _across(self, x: Tensor, features: Tensor, cache: KeyValues, column: int | Tensor, mask: Tensor | None) -> Tensor:
        config = self.config
        entering = self._unit(x) if self._reading.normed else x
        queries = self._unit(self._reading.into(entering).view(len(x), config.heads, config.head_size)) * self._q_norm
        mixed = self._thoughts(features).view(len(x), 2 * config.kv_heads, config.head_size)
        fresh = self._unit(mixed[:, : config.kv_heads]) * self._k_norm
        keys, values = cache.put(column, fresh, mixed[:, config.kv_heads :])
        unseen = 0 if self.config.sink else NOTHING
        keys, values, mask = keys[:, unseen:], values[:, unseen:], None if mask is None else mask[:, unseen:]
        if self.watched is not None:
            with self._aside:
                self.watched.append(F.pad(self._attention_weights(queries, keys, mask), (unseen, 0)))
        return self._finish(self._reading, x, attend_cached(queries, keys, values, mask))

    def _attention_weights(self, queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """Return attention [row, column], averaged over heads."""
        shared = keys.repeat_interleave(self.config.heads // self.config.kv_heads, dim=0)
        scores = queries.transpose(0, 1) @ shared.transpose(1, 2) * self.config.head_size**-0.5
        return (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1).mean(0)

    def _finish(self, layer: _Folded, x: Tensor, attended: Tensor) -> Tensor:
        x = x + layer.out(attended)
        gate, up = layer.up(self._unit(x)).chunk(2, dim=-1)
        return x + layer.down(F.silu(gate) * up)

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        return turn(x, *self.rotary[:, positions][:, :, None])

    def _unit(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), eps=self.config.eps)


def _fold(layer: Plain, layout: Layout, attention_scale: float, feed_scale: float) -> _Folded:
    """Return a layer's matrices, with its attention's output scaled by ``attention_scale`` and its feed-forward's by
    ``feed_scale``."""
    attention, mlp, before = layer.self_attn, layer.mlp, layer.post_attention_layernorm.weight
    entering = torch.cat((attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight))
    return _Folded(
        layer.entry is not None,
        layout(_normed(layer, entering).contiguous()),
        layout((attention.o_proj.weight * attention_scale).contiguous()),
        layout((torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)) * before).contiguous()),
        layout((mlp.down_proj.weight * feed_scale).contiguous()),
    )


def _normed(layer: Plain, weight: Tensor) -> Tensor:
    """Return the matrix that reads the layer's normalised input, with the norm's weight folded in."""
    return weight if layer.entry is None else weight * layer.entry.weight
