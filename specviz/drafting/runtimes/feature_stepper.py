"""Decoding-time form of a feature drafter's network: one sequence, one cache, as few operations as possible.

On a processor a pass over a few rows costs operations and the reading of weights, not arithmetic. So norms' weights move
into the matrices behind them, matrices with a common input become one, and the caller may lay them out for its machine.
Axis names: ``row``, ``hidden``, ``kv`` (heads of keys), ``size`` (of a head), ``column`` (of the cache).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.feature_head import HeadConfig
from specviz.drafting.networks.feature_net import FeatureConfig, FeatureNet, rotary
from specviz.engine.attention import on_processor

Product = Callable[[Tensor], Tensor]
"""Rows times a fixed matrix."""
Layout = Callable[[Tensor], Product]
"""How a matrix [out, in] is kept for products."""


def plain(weight: Tensor) -> Product:
    """The matrix as it is."""
    return partial(F.linear, weight=weight)


class FeatureCache:
    """Keys and values [kv, column, size] of one run, with room to spare; it grows by doubling."""

    def __init__(self, config: FeatureConfig | HeadConfig, capacity: int, like: Tensor) -> None:
        shape = (2, config.kv_heads, capacity, config.head_size)
        self._both = torch.empty(shape, dtype=like.dtype, device=like.device)

    def reserve(self, columns: int) -> None:
        """Make room for this many columns; what is there stays."""
        capacity = self._both.shape[2]
        if columns > capacity:
            wider = torch.empty_like(self._both[:, :, :1]).repeat(1, 1, max(columns, 2 * capacity), 1)
            wider[:, :, :capacity] = self._both
            self._both = wider

    def copy(self, other: FeatureCache, columns: int) -> None:
        """Take over the first columns of another cache."""
        self._both[:, :, :columns] = other._both[:, :, :columns]

    def clear(self) -> None:
        """Zeros everywhere: a column that is masked still counts as 0 times what stands there, which may be no number."""
        self._both.zero_()

    def put(self, start: int | Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [row, kv, size] from column ``start`` on; all up to and with them [kv, column, size]. Where
        ``start`` names a column [row] for each on the device, all columns there are: a mask has to tell which count."""
        if isinstance(start, Tensor):
            self._both[0].index_copy_(1, start, keys.transpose(0, 1))
            self._both[1].index_copy_(1, start, values.transpose(0, 1))
            return self._both[0], self._both[1]
        end = start + len(keys)
        self._both[0, :, start:end] = keys.transpose(0, 1)
        self._both[1, :, start:end] = values.transpose(0, 1)
        return self._both[0, :, :end], self._both[1, :, :end]


class FeatureStepper:
    """Frozen weights folded and laid out; shared between runs, each of which has its own cache."""

    axes, pictured, direct, queries = 1, True, False, 0
    """As :class:`specviz.drafting.runtimes.head_stepper.HeadStepper`'s: a token's place alone, and a picture's own embeddings."""

    def __init__(self, net: FeatureNet, layout: Layout = plain) -> None:
        self.config, self.draft_ids, self._embedding = net.config, net.draft_ids, net.embedding
        self._rotary = net.rotary
        layer, attention, mlp = net.layer, net.layer.self_attn, net.layer.mlp
        entering = torch.cat((attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight))
        if net.config.wide:
            entering = entering * torch.cat((layer.input_layernorm.weight, layer.hidden_norm.weight))
        before = layer.post_attention_layernorm.weight
        self._fc, self._bias = layout(net.fc.weight * net.fc.scale), net.fc.bias
        self._qkv = layout(entering.contiguous())
        self._out = layout(attention.o_proj.weight)
        self._up = layout((torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)) * before).contiguous())
        self._down = layout(mlp.down_proj.weight)
        self._head = layout(net.head * net.norm.weight if net.config.wide else net.head)

    @property
    def embedding(self) -> Tensor:
        """The target's own, [vocab, hidden]: every state has its device and its kind of numbers."""
        return self._embedding

    @property
    def rotary(self) -> Tensor:
        """Cosines and signed sines [2, position, size] as far as it reaches now."""
        return self._rotary

    def open(self, capacity: int) -> FeatureCache:
        """An empty cache with room for ``capacity`` inputs at first."""
        return FeatureCache(self.config, capacity, self._embedding)

    def reach(self, positions: int) -> None:
        """Make the rotary table at least this long."""
        if self._rotary.shape[1] < positions:
            self._rotary = rotary(self.config, 2 * positions).to(self._rotary)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states [row, tap * hidden] to what the network takes, [row, hidden]."""
        return self._enter(features) if self.config.wide else features

    def _enter(self, inputs: Tensor) -> Tensor:
        projected = self._fc(inputs)
        return projected if self._bias is None else projected + self._bias

    def __call__(
        self,
        tokens: Tensor,
        features: Tensor,
        positions: Tensor,
        cache: FeatureCache,
        start: int | Tensor,
        mask: Tensor | None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        """Outputs [row, hidden]; their keys and values go into the cache from column ``start`` on.

        ``mask`` is bool [row, column] up to and with the new columns; None where every row sees them all. ``embedded``
        [row, hidden] stands for the tokens where some of them are no words.
        """
        config, rows = self.config, len(tokens)
        if embedded is None:
            embedded = F.embedding(tokens, self._embedding)
        if config.wide:
            residual = features
            mixed = self._qkv(self._unit(torch.stack((embedded, features), dim=1)).flatten(1))
        else:
            residual = self._enter(torch.cat((embedded, features), dim=-1))
            mixed = self._qkv(residual)
        split = mixed.view(rows, config.heads + 2 * config.kv_heads, config.head_size)
        turned = self._turn(split[:, : config.heads + config.kv_heads], positions)
        keys, values = cache.put(start, turned[:, config.heads :], split[:, config.heads + config.kv_heads :])
        x = residual + self._out(attend(turned[:, : config.heads], keys, values, mask))
        gate, up = self._up(self._unit(x)).chunk(2, dim=-1)
        return x + self._down(F.silu(gate) * up)

    def logits(self, outputs: Tensor) -> Tensor:
        """Outputs [row, hidden] to logits [row, support]."""
        return self._head(self._unit(outputs) if self.config.wide else outputs)

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        cosine, sine = self._rotary.index_select(1, positions)[:, :, None]
        return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine)

    def _unit(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), eps=self.config.eps)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """[row, head, size] to [row, head * size]. Heads that share keys become rows, so that keys are not repeated; on a
    processor only those of a single row, as the target's."""
    rows, heads, size = queries.shape
    groups = len(keys)
    if queries.device.type == "cpu":
        seen = None if mask is None else mask[None, None]
        return on_processor(queries.transpose(0, 1)[None], keys[None], values[None], seen).reshape(rows, heads * size)
    shaped = queries.view(rows, groups, heads // groups, size).permute(1, 2, 0, 3).reshape(1, groups, -1, size)
    repeated = None if mask is None else mask.repeat(heads // groups, 1)
    attended = F.scaled_dot_product_attention(shaped, keys[None], values[None], attn_mask=repeated)
    return attended.view(groups, -1, rows, size).permute(2, 0, 1, 3).reshape(rows, heads * size)
