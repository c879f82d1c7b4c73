"""The small autoregressive draft model: narrow Llama-like layers between two projections onto the target's frozen embedding.

Axis names: ``batch``, ``token``, ``width`` (of the draft), ``hidden`` (of the target), ``draft`` (the reduced vocabulary).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafters.weights import read_weights, write_weights
from specviz.errors import ContextFull, ModelUnavailable


@dataclass(frozen=True)
class SmallConfig:
    """Shape of the network. ``hidden`` and ``vocab_size`` are the target's; ``window`` is how far back a token looks."""

    vocab_size: int
    hidden: int
    draft_vocab: int = 8192
    width: int = 256
    layers: int = 6
    heads: int = 4
    inner: int = 1024
    window: int = 1024
    theta: float = 10000.0


class SmallCache:
    """Keys, values and token ids of one run, preallocated; cropping only moves ``length`` back."""

    def __init__(self, config: SmallConfig, capacity: int, like: Tensor) -> None:
        shape = (config.layers, 1, config.heads, capacity, config.width // config.heads)
        self.keys = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.values = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.last = torch.zeros(capacity + 1, dtype=torch.long, device=like.device)
        self.capacity = capacity
        self.length = 0

    def keep(self, length: int) -> None:
        """Keep the first ``length`` tokens. Raises ValueError when there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} cached tokens")
        self.length = length


@dataclass(frozen=True)
class _Span:
    """Where the tokens of one forward sit: rotary tables of their rows, and the attention mask (None: causal or all)."""

    cosine: Tensor
    sine: Tensor
    start: int
    low: int
    mask: Tensor | None
    causal: bool


class SmallBlock(nn.Module):
    """One layer: normalised causal attention with rotary positions, then a squared-ReLU feed-forward."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.size = config.width // config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.up = nn.Linear(config.width, config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, x: Tensor, span: _Span, past: tuple[Tensor, Tensor] | None) -> Tensor:
        """x [batch, token, width]; ``past`` is this layer's key and value buffers [batch, head, capacity, size]."""
        x = x + self._attend(F.rms_norm(x, (x.shape[-1],)), span, past)
        return x + self.down(F.relu(self.up(F.rms_norm(x, (x.shape[-1],)))).square())

    def _attend(self, x: Tensor, span: _Span, past: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, token, width = x.shape
        mixed = self.qkv(x).view(batch, token, 3 * self.heads, self.size).transpose(1, 2)
        turned = F.rms_norm(mixed[:, : 2 * self.heads], (self.size,))  # bounded logits keep the small net stable
        first, second = turned.chunk(2, dim=-1)
        turned = turned * span.cosine + torch.cat((second, first), dim=-1) * span.sine
        query, key, value = turned[:, : self.heads], turned[:, self.heads :], mixed[:, 2 * self.heads :]
        if past is not None:
            end = span.start + token
            past[0][:, :, span.start : end] = key
            past[1][:, :, span.start : end] = value
            key, value = past[0][:, :, span.low : end], past[1][:, :, span.low : end]
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=span.mask, is_causal=span.causal)
        return self.out(seen.transpose(1, 2).reshape(batch, token, width))


class SmallLM(nn.Module):
    """A language model over ``draft_ids``, the target's most used tokens, reading and writing in the target's embedding."""

    embedding: Tensor
    draft_ids: Tensor
    rotary: Tensor

    def __init__(self, config: SmallConfig, embedding: Tensor, draft_ids: Tensor) -> None:
        super().__init__()
        if embedding.shape != (config.vocab_size, config.hidden):
            raise ModelUnavailable(
                f"This draft model was made for an embedding of {config.vocab_size} x {config.hidden}, "
                f"the target has {embedding.shape[0]} x {embedding.shape[1]}: choose the target it was trained for."
            )
        self.config = config
        # Every token comes with the one before it: copying a phrase then needs one attention layer instead of two.
        self.enter = nn.Linear(2 * config.hidden, config.width, bias=False)
        self.blocks = nn.ModuleList(SmallBlock(config) for _ in range(config.layers))
        self.leave = nn.Linear(config.width, config.hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.draft_vocab))
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("draft_ids", draft_ids.long(), persistent=False)
        self.register_buffer("rotary", _rotary(config, config.window).to(embedding.device), persistent=False)
        self._head: Tensor | None = None

    def head(self) -> Tensor:
        """The target's head seen from the draft's width, [draft, width]: one small matrix product instead of two."""
        return self.embedding[self.draft_ids] @ self.leave.weight

    def features(self, previous: Tensor, ids: Tensor) -> Tensor:
        """Training's view: ids and the token before each, both [batch, token], to normalised features [batch, token, width]."""
        cosine, sine = self._turns(0, ids.shape[1])
        return self._run(previous, ids, _Span(cosine, sine, 0, 0, None, True), None)

    def open(self, capacity: int) -> SmallCache:
        """An empty cache with room for ``capacity`` tokens."""
        return SmallCache(self.config, capacity, self.embedding)

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: SmallCache, last_only: bool = False) -> Tensor:
        """Read ids [token] after what the cache holds; logits [token, draft] (or of the last token alone, [1, draft])."""
        token, start = ids.shape[0], cache.length
        if start + token > cache.capacity:
            raise ContextFull(f"The draft model's cache holds {cache.capacity} tokens and needs {start + token}.")
        if token > self.config.window:  # a longer prompt than the window: in pieces, so that no mask grows past it
            self.forward(ids[: -self.config.window], cache, last_only=True)
            return self.forward(ids[-self.config.window :], cache, last_only)
        cache.last[start + 1 : start + token + 1] = ids
        previous = cache.last[start : start + token]
        past = [(cache.keys[layer], cache.values[layer]) for layer in range(self.config.layers)]
        x = self._run(previous[None], ids[None], self._span(start, token), past)[0]
        cache.length = start + token
        if self._head is None:
            self._head = self.head().contiguous()
        return F.linear(x[-1:] if last_only else x, self._head, self.bias)

    def _run(self, previous: Tensor, ids: Tensor, span: _Span, past: list[tuple[Tensor, Tensor]] | None) -> Tensor:
        pair = torch.stack((previous, ids), dim=-1)
        x = self.enter(F.embedding(pair, self.embedding).flatten(-2))
        for layer, block in enumerate(self.blocks):
            x = block(x, span, None if past is None else past[layer])
        return F.rms_norm(x, (x.shape[-1],))

    def _span(self, start: int, token: int) -> _Span:
        cosine, sine = self._turns(start, token)
        low = max(0, start + 1 - self.config.window)
        if token == 1 or start == 0:
            return _Span(cosine, sine, start, low, None, token > 1)
        row = torch.arange(start, start + token, device=self.embedding.device)[:, None]
        column = torch.arange(low, start + token, device=self.embedding.device)[None]
        return _Span(cosine, sine, start, low, (column <= row) & (column > row - self.config.window), False)

    def _turns(self, start: int, token: int) -> tuple[Tensor, Tensor]:
        while self.rotary.shape[1] < start + token:
            self.rotary = _rotary(self.config, 2 * self.rotary.shape[1]).to(self.rotary)
        return self.rotary[0, start : start + token], self.rotary[1, start : start + token]


def _rotary(config: SmallConfig, length: int) -> Tensor:
    """Cosines and signed sines [2, position, size]; the sine's sign does the half rotation's negation."""
    half = config.width // config.heads // 2
    angle = torch.arange(length)[:, None] * torch.exp(-math.log(config.theta) * torch.arange(half) / half)
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack((torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)))


def save(model: SmallLM, path: Path, card: dict[str, str]) -> None:
    """Write the learned weights (row-wise int8), the vocabulary and ``card`` to ``path``; the target's own are left out."""
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    tensors["draft_ids"] = model.draft_ids
    write_weights(path, tensors, {**card, "config": json.dumps(asdict(model.config))})


def load(path: Path, embedding: Tensor, dtype: torch.dtype, device: torch.device) -> SmallLM:
    """The draft model in ``path``, tied to this target's ``embedding``. Raises ModelUnavailable when they do not fit."""
    tensors, card = read_weights(path)
    if "config" not in card or "draft_ids" not in tensors:
        raise ModelUnavailable(f"{path.name} is no small draft model: choose a file written by this app's training.")
    config = SmallConfig(**json.loads(card["config"]))
    ids = tensors.pop("draft_ids")
    model = SmallLM(config, embedding.detach().to(device, dtype), ids.to(device))
    try:
        model.load_state_dict(tensors)
    except RuntimeError as problem:
        raise ModelUnavailable(f"{path.name} does not hold this draft model's weights: fetch the file again.") from problem
    model.rotary = model.rotary.to(device, dtype)
    return model.to(device, dtype).eval().requires_grad_(False)
