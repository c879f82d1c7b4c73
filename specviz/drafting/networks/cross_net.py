"""Cross-attention draft network: self-attention, and gated cross-attention to the target's features (DREAM, arXiv 2505.19201).

Three layers: a decoder layer over the target's input embeddings (images included), a cross-attention layer to the target's last
hidden states, and another decoder layer. These hidden states are called *thoughts* here. The row of token i reads the thoughts
up to token i - 1. Its output predicts the thought at token i, which the target's head maps to the distribution of token i + 1.
The cross-attention layer adds to the row through two tanh gates; at zero, only the decoder layers remain.

While drafting, committed tokens enter the caches with the target's embeddings and thoughts. A drafted node enters with the
embedding of its token and, as a thought, the output of its parent, until the end of the round. In the cross-attention a node
attends to column 0, the committed columns and its own ancestors; without this mask, siblings would leak into each other.

Axis names: ``row``, ``hidden``, ``head``, ``kv`` (key-value heads), ``size`` (of a head), ``column`` (of a cache).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import DecoderLayer, KeyValues, LayerCaches, Layout, plain, projections, unit
from specviz.drafting.networks.decoder_layer import attend as attend_cached
from specviz.drafting.networks.eagle_head import EagleConfig, Layer, Norm
from specviz.drafting.networks.network import Network

NOTHING = 1
"""Number of columns of zeros before the thoughts; the first row attends only to these."""


@dataclass(frozen=True)
class CrossConfig(EagleConfig):
    """Sizes as in :class:`EagleConfig`, with the defaults of the networks trained here.

    ``taps``: the target's input embeddings (0) and last hidden state. ``keep``: fraction of image tokens kept in training, those
    with the most attention in the target's last layer. The authors' release differs in the position of norms and in row 0.
    """

    keep: float = 0.75
    entry_norm: bool = True
    """Whether a norm precedes the first layer."""
    inner_norms: bool = False
    """Whether the cross-attention and the last layer normalise their inputs."""
    sink: bool = True
    """Whether rows attend to a column of zeros in addition to the thoughts.

    Without the column, the first row has no thought to attend to, and a softmax over masked entries yields the mean of the
    prompt's thoughts.
    """


class Plain(Layer):
    """Decoder layer over rows."""

    def __init__(self, config: EagleConfig, normed: bool = False) -> None:
        super().__init__(config)
        if normed:
            self.input_layernorm = Norm(config.hidden, config.eps)

    @property
    def entry(self) -> Norm | None:
        """Norm of the layer's input, if any."""
        norm: Norm | None = getattr(self, "input_layernorm", None)
        return norm

    def entering(self, x: Tensor) -> Tensor:
        """Return the attention's input for rows [row, hidden]."""
        return x if self.entry is None else self.entry(x)


class Reading(Plain):
    """Gated cross-attention: queries from rows, keys and values from thoughts, queries and keys normalised per head."""

    def __init__(self, config: EagleConfig, normed: bool = False) -> None:
        super().__init__(config, normed)
        self.q_norm = Norm(config.head_size, config.eps)
        self.k_norm = Norm(config.head_size, config.eps)
        self.gates = nn.Parameter(torch.zeros(2))

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output from rows and their attention output, both additions scaled by gates."""
        first, second = self.gates.tanh()
        x = residual + first * self.self_attn.o_proj(attended)
        return x + second * self.mlp(self.post_attention_layernorm(x))


class CrossNet(Network):
    """The network for training. ``embedding`` and ``head`` [vocab, hidden]: the target's tensors, frozen and shared."""

    title, shape = "cross-attention drafter", CrossConfig
    head: Tensor

    def __init__(self, config: CrossConfig, embedding: Tensor, head: Tensor, draft_ids: Tensor | None = None) -> None:
        super().__init__(config, embedding, head, draft_ids, config.angles, config.window)
        self.enter = Norm(config.hidden, config.eps) if config.entry_norm else nn.Identity()
        inner = config.inner_norms
        self.first, self.reading, self.last = Plain(config), Reading(config, inner), Plain(config, inner)
        self.norm = Norm(config.hidden, config.eps)

    def runtime(self, layout: Layout = plain) -> CrossRuntime:
        """Return the inference runtime."""
        return CrossRuntime(self, layout)

    def thoughts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised keys, and values, each [row, kv, size], of the target's last hidden states or of this network's
        outputs."""
        keys, values = self.reading.self_attn.keys_values(features)
        return self.reading.k_norm(keys), values

    def nothing(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of column 0, which are zeros."""
        zeros = self.embedding.new_zeros(NOTHING, self.config.kv_heads, self.config.head_size)
        return zeros, zeros

    def keys_values(self, layer: Plain, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated keys, and values, each [row, kv, size], for the input of a decoder layer."""
        keys, values = layer.self_attn.keys_values(layer.entering(x))
        return self.turn(keys, positions), values

    def within(self, layer: Plain, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor, hidden_from: Tensor) -> Tensor:
        """Run a decoder layer over rows [row, hidden]; ``keys`` and ``values`` [column, kv, size] include those of the rows.

        ``hidden_from``: bool [row, column], True where the column is masked for the row.
        """
        queries = self.turn(layer.self_attn.queries(layer.entering(x)), positions)
        return layer.finish(x, attend(queries, keys, values, hidden_from))

    def across(self, x: Tensor, keys: Tensor, values: Tensor, hidden_from: Tensor) -> Tensor:
        """Run the cross-attention over rows [row, hidden].

        ``keys`` and ``values`` [column, kv, size]: zeros in column 0, then those of the thoughts.
        """
        return self.reading.finish(x, attend(self._queries(x), keys, values, hidden_from))

    def weights(self, x: Tensor, keys: Tensor, hidden_from: Tensor) -> Tensor:
        """Return each row's attention weights [row, column], averaged over heads, for display."""
        return _mean_weights(self._queries(x), keys.transpose(0, 1), ~hidden_from)

    def _queries(self, x: Tensor) -> Tensor:
        return self.reading.q_norm(self.reading.self_attn.queries(self.reading.entering(x)))

    def logits(self, outputs: Tensor) -> Tensor:
        """Map outputs [row, hidden] to logits [row, support]."""
        return F.linear(outputs, self.head)

    def whole(self, embedded: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Run the network over a whole committed text: embeddings and thoughts [row, hidden] at ``positions`` [row].

        Returns the network's and the middle layer's outputs, each [row, hidden]. The last row's thought is unused.
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


class CrossRuntime:
    """Inference runtime, shared between runs, with three caches whose columns are numbered alike.

    A column belongs to a row. In the self-attentions it holds the row's keys and values; in the cross-attention, those of the
    row's thought. For drafted nodes, the thought is the output of the row's parent. One mask (committed columns, ancestors, the
    row itself) thus keeps siblings apart in all three. Column 0 holds the prompt's first token, and zeros in the cross-attention.

    ``open_gates``: False turns cross-attention off. ``watched``: in a twin made by :meth:`watching`, attention weights [row,
    column] of each call, averaged over heads.
    """

    def __init__(self, net: CrossNet, layout: Layout = plain, open_gates: bool = True) -> None:
        self.config: CrossConfig = net.config
        self.draft_ids = net.draft_ids
        self.watched: list[Tensor] | None = None
        self._aside: AbstractContextManager[None] = nullcontext()
        self._net, self._layout = net, layout
        self.embedding, self.reach = net.embedding, net.reach
        self._sizes = net.config.sizes
        self._first, self._last = (self._laid_out(layer.state_dict()) for layer in (net.first, net.last))
        self._entry = net.enter.weight if isinstance(net.enter, Norm) else None
        gates = net.reading.gates.tanh().tolist() if open_gates else [0.0, 0.0]
        self._open, reading = any(gates), net.reading.state_dict()
        for name, gate in zip(("self_attn.o_proj.weight", "mlp.down_proj.weight"), gates, strict=True):
            reading[name] = reading[name] * gate
        self._reading, self._thoughts = self._laid_out(reading, "q"), layout(projections(self._sizes, reading, "kv"))
        self._q_norm, self._k_norm = net.reading.q_norm.weight, net.reading.k_norm.weight
        self._head = layout(net.head)

    def _laid_out(self, part: dict[str, Tensor], names: str = "qkv") -> DecoderLayer:
        before, between = part.get("input_layernorm.weight"), part["post_attention_layernorm.weight"]
        return DecoderLayer(self._sizes, part, self._layout, before, between, names)

    def without_cross_attention(self) -> CrossRuntime:
        """Return the same drafter with closed gates."""
        return CrossRuntime(self._net, self._layout, open_gates=False)

    def watching(self, aside: AbstractContextManager[None]) -> CrossRuntime:
        """Return a twin for one run that records attention weights. ``aside``: context manager for untimed work."""
        twin = object.__new__(CrossRuntime)
        twin.__dict__.update(self.__dict__)
        twin.watched, twin._aside = [], aside
        return twin

    def open(self, capacity: int) -> LayerCaches:
        """Return empty caches of the first layer, the thoughts and the last layer, with column 0 in addition to the rows."""
        return LayerCaches(3, self.config, capacity, self.embedding, NOTHING)

    @property
    def rotary(self) -> Tensor:
        """The network's rotary table of the current length."""
        return self._net.rotary

    def fuse(self, features: Tensor) -> Tensor:
        """Return the target's last hidden states unchanged."""
        return features

    def lead(self, cache: LayerCaches, embedded: Tensor, position: Tensor, features: Tensor) -> None:
        """Fill column 0 with the prompt's first token, [1, hidden] at ``position`` [1], and with zeros in the cross-attention.

        ``features`` [row, hidden]: the target's thoughts in the prompt.
        """
        cache.layers[1].put(0, *self._net.nothing())
        turns, x = self._turns(position), self._enter(embedded)
        x = self._first(x, x, turns, cache.layers[0], 0, None)
        if self._open:
            found = torch.zeros(1, self.config.heads * self.config.head_size).to(x)
            if not self.config.sink and len(features):
                values = self._thoughts(features).unflatten(-1, (2, self.config.kv_heads, -1))[:, 1].mean(0)
                found = values.repeat_interleave(self.config.heads // self.config.kv_heads, dim=0).view(1, -1)
            x = self._reading.finish(x, found)
        self._last(self._inner(x), x, turns, cache.layers[2], 0, None)

    def __call__(
        self,
        tokens: Tensor,
        features: Tensor,
        positions: Tensor,
        cache: LayerCaches,
        start: int | Tensor,
        mask: Tensor | None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        """Return outputs [row, hidden] of rows, each with one thought in ``features`` [row, hidden].

        Arguments as for :class:`.feature_drafter.Runtime`, without column 0. ``mask``: bool [row, column], None if each row
        attends to all columns.
        """
        column = NOTHING + start
        padded_mask = None if mask is None else F.pad(mask, (NOTHING, 0), value=True)
        x = self._enter(F.embedding(tokens, self.embedding) if embedded is None else embedded)
        turns = self._turns(positions)
        x = self._first(x, x, turns, cache.layers[0], column, padded_mask)
        if self._open:
            x = self._across(x, features, cache.layers[1], column, padded_mask)
        x = self._last(self._inner(x), x, turns, cache.layers[2], column, padded_mask)
        return unit(x, self._sizes) * self._net.norm.weight

    def logits(self, outputs: Tensor) -> Tensor:
        """Map outputs [row, hidden] to logits [row, support]."""
        return self._head(outputs)

    def _enter(self, embedded: Tensor) -> Tensor:
        return embedded if self._entry is None else unit(embedded, self._sizes) * self._entry

    def _inner(self, x: Tensor) -> Tensor:
        """Return the attention's input in the cross-attention and in the last layer."""
        return unit(x, self._sizes) if self.config.inner_norms else x

    def _turns(self, positions: Tensor) -> Tensor:
        return self.rotary.index_select(1, positions)[:, :, None]

    def _across(self, x: Tensor, features: Tensor, cache: KeyValues, column: int | Tensor, mask: Tensor | None) -> Tensor:
        config = self.config
        queries = unit(self._reading.enter(self._inner(x)), self._sizes) * self._q_norm
        mixed = self._thoughts(features).view(len(x), 2 * config.kv_heads, config.head_size)
        fresh = unit(mixed[:, : config.kv_heads], self._sizes) * self._k_norm
        keys, values = cache.put(column, fresh, mixed[:, config.kv_heads :])
        unseen = 0 if self.config.sink else NOTHING
        keys, values, mask = keys[:, unseen:], values[:, unseen:], None if mask is None else mask[:, unseen:]
        if self.watched is not None:
            with self._aside:
                self.watched.append(F.pad(_mean_weights(queries, keys, mask), (unseen, 0)))
        return self._reading.finish(x, attend_cached(queries, keys, values, mask))


def _mean_weights(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Return attention weights [row, column] of queries [row, head, size] over keys [kv, column, size], averaged over heads."""
    shared = keys.repeat_interleave(queries.shape[1] // len(keys), dim=0)
    scores = queries.transpose(0, 1) @ shared.transpose(1, 2) * queries.shape[-1] ** -0.5
    return (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1).mean(0)


def attend(queries: Tensor, keys: Tensor, values: Tensor, hidden_from: Tensor) -> Tensor:
    """Return the grouped-query attention output [row, head * size] of queries [row, head, size] over keys and values [column, kv,
    size].

    ``hidden_from``: bool [row, column], True where the column is masked for the row.
    """
    rows, heads, size = queries.shape
    groups = keys.shape[1]
    shaped = queries.view(rows, groups, heads // groups, size)
    grouped_queries = shaped.permute(1, 2, 0, 3).reshape(groups, -1, size) * size**-0.5
    scores = (grouped_queries @ keys.permute(1, 2, 0)).view(groups, -1, rows, len(keys))
    weights = scores.masked_fill(hidden_from, float("-inf")).softmax(-1)
    attended = weights.reshape(groups, -1, len(keys)) @ values.transpose(0, 1)
    return attended.view(groups, -1, rows, size).permute(2, 0, 1, 3).reshape(rows, heads * size)
