"""Decoding-time form of the cross-attention drafter: three caches with one numbering of columns.

A column belongs to a row. It holds the row's keys and values in both self-attentions, and in the cross-attention those of
the thought that the row came with: the target's own where the text is committed, the drafter's output for its parent where
it is not. So one mask (what is committed, ancestors, itself) keeps siblings apart in all three. Column 0 holds the prompt's
first token, and in the cross-attention nothing.
Axis names: ``row``, ``hidden``, ``kv`` (heads of keys), ``size`` (of a head), ``column``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.cross_net import NOTHING, CrossConfig, CrossNet, Plain
from specviz.drafting.networks.feature_net import Norm, rotary
from specviz.drafting.runtimes.feature_stepper import FeatureCache, Layout, Product, attend, plain


class CrossCache:
    """Keys and values of one run: of the first layer, of the thoughts, of the last layer."""

    def __init__(self, first: FeatureCache, thoughts: FeatureCache, last: FeatureCache) -> None:
        self.first, self.thoughts, self.last = first, thoughts, last

    def reserve(self, columns: int) -> None:
        """Make room for this many rows, and column 0."""
        for cache in (self.first, self.thoughts, self.last):
            cache.reserve(NOTHING + columns)


class _Folded(NamedTuple):
    """One layer's matrices, the norms' weights inside; ``into`` gives queries, keys and values, or queries alone; ``normed``
    says whether it reads its input normalised."""

    normed: bool
    into: Product
    out: Product
    up: Product
    down: Product


class CrossStepper:
    """Frozen weights folded and laid out; shared between runs, each of which has its own cache.

    ``open_gates`` False drafts as if there were no cross-attention. ``watched`` collects, in a twin made by
    :meth:`watching`, how much each row of each call looks at each column, a mean over heads [row, column].
    """

    def __init__(self, net: CrossNet, layout: Layout = plain, open_gates: bool = True) -> None:
        self.config: CrossConfig = net.config
        self.draft_ids = net.draft_ids
        self.watched: list[Tensor] | None = None
        self._aside: AbstractContextManager[None] = nullcontext()
        self._net, self._layout = net, layout
        self._embedding, self._rotary = net.embedding, net.rotary
        self._first, self._last = (_folded(layer, layout, 1.0, 1.0) for layer in (net.first, net.last))
        self._entry = net.enter.weight if isinstance(net.enter, Norm) else None
        gates = net.reading.gates.tanh().tolist() if open_gates else [0.0, 0.0]
        self._open = any(gates)
        attention = net.reading.self_attn
        self._reading = _folded(net.reading, layout, *gates)._replace(into=layout(_normed(net.reading, attention.q_proj.weight)))
        self._thoughts = layout(torch.cat((attention.k_proj.weight, attention.v_proj.weight)).contiguous())
        self._q_norm, self._k_norm = net.reading.q_norm.weight, net.reading.k_norm.weight
        self._head = layout(net.head)

    def without_cross_attention(self) -> CrossStepper:
        """The same drafter with its gates shut."""
        return CrossStepper(self._net, self._layout, open_gates=False)

    def watching(self, aside: AbstractContextManager[None]) -> CrossStepper:
        """A twin for one run that keeps what its rows look at, in time that is counted ``aside``."""
        twin = object.__new__(CrossStepper)
        twin.__dict__.update(self.__dict__)
        twin.watched, twin._aside = [], aside
        return twin

    def open(self, capacity: int) -> CrossCache:
        """An empty cache with room for ``capacity`` rows at first."""
        return CrossCache(*(FeatureCache(self.config, NOTHING + capacity, self._embedding) for _ in range(3)))

    def reach(self, positions: int) -> None:
        """Make the rotary table at least this long."""
        if self._rotary.shape[1] < positions:
            self._rotary = rotary(self.config, 2 * positions).to(self._rotary)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's last hidden states are taken as they are."""
        return features

    def lead(self, cache: CrossCache, embedded: Tensor, position: Tensor, features: Tensor) -> None:
        """Put the prompt's first token, [1, hidden] at ``position`` [1], and nothing, into column 0. ``features`` [row, hidden]
        are the target's thoughts in the prompt."""
        nothing = self._embedding.new_zeros(NOTHING, self.config.kv_heads, self.config.head_size)
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
        start: int,
        mask: Tensor | None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        """Outputs [row, hidden] of rows that come with one thought each, ``features`` [row, hidden]; arguments as those of
        the feature stepper, column 0 not counted: ``mask`` is bool [row, column], None where every row sees all of them."""
        column = NOTHING + start
        padded_mask = None if mask is None else F.pad(mask, (NOTHING, 0), value=True)
        x = self._enter(F.embedding(tokens, self._embedding) if embedded is None else embedded)
        x = self._self(self._first, x, positions, cache.first, column, padded_mask)
        if self._open:
            x = self._across(x, features, cache.thoughts, column, padded_mask)
        x = self._self(self._last, x, positions, cache.last, column, padded_mask)
        return self._unit(x) * self._net.norm.weight

    def logits(self, outputs: Tensor) -> Tensor:
        """Outputs [row, hidden] to logits [row, support]."""
        return self._head(outputs)

    def _enter(self, embedded: Tensor) -> Tensor:
        return embedded if self._entry is None else self._unit(embedded) * self._entry

    def _self(
        self, layer: _Folded, x: Tensor, positions: Tensor, cache: FeatureCache, column: int, mask: Tensor | None
    ) -> Tensor:
        config = self.config
        entering = self._unit(x) if layer.normed else x
        mixed = layer.into(entering).view(len(x), config.heads + 2 * config.kv_heads, config.head_size)
        turned = self._turn(mixed[:, : config.heads + config.kv_heads], positions)
        keys, values = cache.put(column, turned[:, config.heads :], mixed[:, config.heads + config.kv_heads :])
        return self._finish(layer, x, attend(turned[:, : config.heads], keys, values, mask))

    def _across(self, x: Tensor, features: Tensor, cache: FeatureCache, column: int, mask: Tensor | None) -> Tensor:
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
                self.watched.append(F.pad(self._looks(queries, keys, mask), (unseen, 0)))
        return self._finish(self._reading, x, attend(queries, keys, values, mask))

    def _looks(self, queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """[row, column], a mean over heads."""
        shared = keys.repeat_interleave(self.config.heads // self.config.kv_heads, dim=0)
        scores = queries.transpose(0, 1) @ shared.transpose(1, 2) * self.config.head_size**-0.5
        return (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1).mean(0)

    def _finish(self, layer: _Folded, x: Tensor, attended: Tensor) -> Tensor:
        x = x + layer.out(attended)
        gate, up = layer.up(self._unit(x)).chunk(2, dim=-1)
        return x + layer.down(F.silu(gate) * up)

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        cosine, sine = self._rotary[:, positions][:, :, None]
        return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine)

    def _unit(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), eps=self.config.eps)


def _folded(layer: Plain, layout: Layout, attention_scale: float, feed_scale: float) -> _Folded:
    """A layer's matrices: what its attention adds scaled by ``attention_scale``, its feed-forward by ``feed_scale``."""
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
    """A matrix behind the norm of the layer's input, that norm's weight inside."""
    return weight if layer.entry is None else weight * layer.entry.weight
