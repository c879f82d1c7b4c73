"""Small autoregressive draft model: narrow layers between two projections to the target's frozen embedding.

Axis names: ``batch``, ``token``, ``width`` (of the draft), ``hidden`` (of the target), ``draft`` (the draft vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.network import Network
from specviz.drafting.networks.rotary import rates_of, turn
from specviz.engine.stop import chunks
from specviz.errors import ContextFull


@dataclass(frozen=True)
class SmallConfig:
    """Sizes of the network. ``hidden``, ``vocab_size``: those of the target. ``window``: number of tokens that a token attends
    to."""

    vocab_size: int
    hidden: int
    draft_vocab: int = 8192
    width: int = 128
    layers: int = 6
    heads: int = 4
    inner: int = 512
    window: int = 512
    theta: float = 10000.0


class SmallCache:
    """Preallocated keys, values and token ids of one run; cropping only lowers ``length``."""

    def __init__(self, config: SmallConfig, capacity: int, like: Tensor) -> None:
        shape = (config.layers, 1, config.heads, capacity, config.width // config.heads)
        self.keys = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.values = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.last = torch.zeros(capacity + 1, dtype=torch.long, device=like.device)
        self.capacity = capacity
        self.length = 0

    def clear(self) -> None:
        """Fill with zeros, because masked columns still enter products with weight 0 and must be finite."""
        for part in (self.keys, self.values, self.last):
            part.zero_()

    def keep(self, length: int) -> None:
        """Keep the first ``length`` tokens. Raises ValueError if the cache holds fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} cached tokens")
        self.length = length


class Rows:
    """Rows of a pass over ``ids`` [token] after the cached tokens.

    ``pairs`` [token, 2]: each token and the one before it. ``turns``: rotary factors. ``mask``: columns that the rows attend to.
    """

    def __init__(self, ids: Tensor, cache: SmallCache, model: SmallLM) -> None:
        window, start = model.config.window, cache.length
        self._start, self._end, self._low = start, start + len(ids), max(0, start + 1 - window)
        model.reach(self._end)
        cache.last[start + 1 : self._end + 1] = ids
        self.pairs = torch.stack((cache.last[start : self._end], ids), dim=-1)
        self.turns = [table[:, None, None] for table in model.rotary[:, start : self._end]]
        self.mask: Tensor | None = None
        if len(ids) > 1 and start > 0:
            distance = torch.arange(start, self._end, device=ids.device)[:, None] - torch.arange(
                self._low, self._end, device=ids.device
            )
            self.mask = (distance >= 0) & (distance < window)
        self.causal = len(ids) > 1 and start == 0
        """Whether plain causal attention suffices, without a mask."""

    def put(self, part: Tensor, fresh: Tensor) -> Tensor:
        """Write ``fresh`` [.., token, size] into keys or values [.., column, size]. Returns the columns to attend to."""
        part[..., self._start : self._end, :] = fresh
        return part[..., self._low : self._end, :]


class FixedRows:
    """Variant of :class:`Rows` for CUDA graphs, with the first position ``start`` [1] on the device.

    Each pass reads as many columns as the window has. Padding rows come last, so other rows do not attend to them, and later
    passes overwrite them.
    """

    causal = False

    def __init__(self, ids: Tensor, start: Tensor, cache: SmallCache, model: SmallLM) -> None:
        window, count = model.config.window, torch.arange(1 - model.config.window, len(ids), device=ids.device)
        self._places, columns = start + count[window - 1 :], start + count
        cache.last.index_copy_(0, self._places + 1, ids)
        self.pairs = torch.stack((cache.last.index_select(0, self._places), ids), dim=-1)
        self.turns = [table[:, None, None] for table in model.rotary.index_select(1, self._places)]
        distance = self._places[:, None] - columns
        self.mask: Tensor | None = (distance >= 0) & (distance < window) & (columns >= 0)
        self._columns = columns.clamp_min(0)

    def put(self, part: Tensor, fresh: Tensor) -> Tensor:
        part.index_copy_(part.ndim - 2, self._places, fresh)
        return part.index_select(part.ndim - 2, self._columns)


class SmallBlock(nn.Module):
    """One layer: normalised attention with rotary positions, then a squared-ReLU feed-forward."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.size = config.width // config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.up = nn.Linear(config.width, config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, causal: bool = True, mask: Tensor | None = None) -> Tensor:
        """Map x [batch, token, width] with the rotary tables [token, size]; ``mask`` bool [batch, 1, 1, token] is False on
        padding."""
        batch, token, width = x.shape
        mixed = self.qkv(F.rms_norm(x, (width,))).view(batch, token, 3 * self.heads, self.size).transpose(1, 2)
        turned = F.rms_norm(mixed[:, : 2 * self.heads], (self.size,))  # bounded attention logits keep the small network stable
        turned = turn(turned, cosine, sine)
        query, key, value = turned[:, : self.heads], turned[:, self.heads :], mixed[:, 2 * self.heads :]
        if torch.is_grad_enabled():
            attended = _attention(query, key, value, causal, mask)
        else:
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, token, width))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (width,)))).square())


def _attention(query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    """Return the attention output [batch, head, token, size] from two products.

    On a CPU, the fused kernel's backward pass took a third of the training time.
    """
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).to(value.dtype) @ value


class NarrowNet(Network):
    """Narrow layers over ``draft_ids``, the target's most frequent tokens, with the target's embedding for input and output."""

    shape, needs_vocabulary = SmallConfig, True

    def __init__(self, config: SmallConfig, embedding: Tensor, draft_ids: Tensor) -> None:
        rates = rates_of(config.width // config.heads, config.theta)
        super().__init__(config, embedding, None, draft_ids, rates, config.window)
        # Each token enters together with the previous one, so copying a phrase takes one attention layer instead of two.
        self.enter = nn.Linear(2 * config.hidden, config.width, bias=False)
        self.blocks = nn.ModuleList(SmallBlock(config) for _ in range(config.layers))
        self.leave = nn.Linear(config.width, config.hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.draft_vocab))
        self._ready: Any = None
        """Values that inference has computed from the weights."""

    def head(self) -> Tensor:
        """Return the target's output head in the draft's width, [draft, width], which saves a matrix product."""
        return self.embedding[self.draft_ids] @ self.leave.weight

    def train(self, mode: bool = True) -> Self:
        """Drop the values that inference has computed, because the weights may change."""
        self._ready = None
        return super().train(mode)


class SmallLM(NarrowNet):
    """Autoregressive language model."""

    title = "small draft model"

    def features(self, previous: Tensor, ids: Tensor) -> Tensor:
        """Map ids and previous tokens, each [batch, token], to features [batch, token, width]; for training."""
        self.reach(ids.shape[1])
        cosine, sine = self.turns(torch.arange(ids.shape[1], device=ids.device))
        x = self.enter(F.embedding(torch.stack((previous, ids), dim=-1), self.embedding).flatten(-2))
        for block in self.blocks:
            x = block(x, cosine, sine)
        return F.rms_norm(x, (x.shape[-1],))

    def open(self, capacity: int) -> SmallCache:
        """Return an empty cache with room for ``capacity`` tokens."""
        return SmallCache(self.config, capacity, self.embedding)

    def inference(self) -> SmallRuntime:
        """Return the inference runtime."""
        if self._ready is None:
            self._ready = SmallRuntime(self)
        return self._ready

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: SmallCache, last_only: bool = False) -> Tensor:
        """Return logits [token, draft] of ids [token] after the cached tokens, or only of the last one, [1, draft].

        Raises ContextFull if the cache is too small.
        """
        token, start = ids.shape[0], cache.length
        if start + token > cache.capacity:
            raise ContextFull(f"The draft model's cache holds {cache.capacity} tokens and needs {start + token}.")
        runtime = self.inference()
        # Prompts longer than the window run in chunks, so that masks stay small.
        logits = [runtime(ids[first:last], cache, last_only) for first, last in chunks(token, self.config.window)]
        return logits[-1] if last_only or len(logits) == 1 else torch.cat(logits)


class SmallRuntime:
    """Inference runtime: one sequence, a cache, and few operator calls per layer.

    On a CPU, a one-token pass is bound by operator dispatch, not by arithmetic. A normalisation is therefore a norm and a
    division, with constant factors folded into the next matrix, and additions are fused into matrix products.
    """

    def __init__(self, model: SmallLM) -> None:
        config = model.config
        self.model, self.config = model, config
        self.size = config.width // config.heads
        grown = config.width**0.5
        blocks: Any = model.blocks
        self.layers = [(one.qkv.weight * grown, one.out.weight.T, one.up.weight * grown, one.down.weight.T) for one in blocks]
        self.head = (model.head() * grown).contiguous()

    def __call__(self, ids: Tensor, cache: SmallCache, last_only: bool) -> Tensor:
        """See :meth:`SmallLM.forward`. The cache must have room, and the tokens must fit the window."""
        x = self.outputs(Rows(ids, cache, self.model), cache)
        cache.length += len(ids)
        return self.logits(x[-1:] if last_only else x)

    def logits(self, x: Tensor) -> Tensor:
        """Map outputs [token, width] to logits [token, draft]."""
        return F.linear(unit(x), self.head, self.model.bias)

    def outputs(self, rows: Rows | FixedRows, cache: SmallCache) -> Tensor:
        """Return the last layer's outputs [token, width] for ``rows``, whose keys and values are written to the cache."""
        x = F.linear(F.embedding(rows.pairs, self.model.embedding).flatten(-2), self.model.enter.weight)
        for number in range(len(self.layers)):
            x = self.layer(number, x, rows, cache)
        return x

    def layer(self, number: int, x: Tensor, rows: Rows | FixedRows, cache: SmallCache) -> Tensor:
        """Run one layer, attention and feed-forward."""
        qkv, out, up, down = self.layers[number]
        mixed = F.linear(unit(x), qkv).view(len(x), 3, self.config.heads, self.size)
        turned = turn(unit(mixed[:, :2]), *rows.turns)
        attended = self.attend(
            turned[:, 0].transpose(0, 1)[None],
            rows.put(cache.keys[number], turned[:, 1].transpose(0, 1)[None]),
            rows.put(cache.values[number], mixed[:, 2].transpose(0, 1)[None]),
            rows,
        )
        x = torch.addmm(x, attended[0].transpose(0, 1).reshape(len(x), -1), out)
        return torch.addmm(x, F.relu(F.linear(unit(x), up)).square_(), down)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, rows: Rows | FixedRows) -> Tensor:
        """Return the attention output [layer, head, token, size] of unit vectors."""
        # The usual 1/sqrt(size), times the two factors sqrt(size) that unit vectors lack.
        scale = self.size**0.5
        return F.scaled_dot_product_attention(queries, keys, values, rows.mask, is_causal=rows.causal, scale=scale)


def unit(x: Tensor) -> Tensor:
    """Scale the last axis of x to unit length."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
