"""Decoding-time form of a published feature head: any number of layers, windows, and the conventions it was made with.

As in ``feature_stepper``, norms' weights move into the matrices behind them, and matrices with a common
input become one. Axis names: ``row``, ``hidden``, ``kv`` (heads of keys), ``size`` (of a head), ``column`` (of the cache).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.feature_head import EACH, TOGETHER, FeatureHead, HeadConfig, axis_of_rates, rotary_rates
from specviz.drafting.networks.grid_rotary import grid_rotary
from specviz.drafting.runtimes.expert_layer import ExpertLayer
from specviz.drafting.runtimes.feature_stepper import FeatureCache, Layout, Product, attend, plain

_FIRST_POSITIONS = 1024
_LAYER_NORM_EPS = 1e-5


class HeadCache:
    """Keys and values of one run, a :class:`FeatureCache` a layer, and the place of each column in the text, which windows
    need."""

    def __init__(self, config: HeadConfig, capacity: int, like: Tensor) -> None:
        self.layers = [FeatureCache(config, capacity, like) for _ in range(config.layers)]
        self.places = torch.empty(capacity, dtype=torch.long, device=like.device)

    def reserve(self, columns: int) -> None:
        """Make room for this many columns; what is there stays."""
        for layer in self.layers:
            layer.reserve(columns)
        if columns > len(self.places):
            wider = self.places.new_empty(max(columns, 2 * len(self.places)))
            wider[: len(self.places)] = self.places
            self.places = wider


@dataclass
class _Layer:
    """One decoder layer, folded and laid out."""

    entering: Product
    bias: Tensor | None
    leaving: Product
    leaving_bias: Tensor | None
    feed: Product
    turning: tuple[Tensor, Tensor] | None
    """Weights of the norms of queries and of keys, each [size]."""
    layer_norms: tuple[tuple[Tensor, Tensor], ...]
    """Weights and biases of such norms by head, each [head, size]; () where there are none."""
    window: int


class HeadStepper:
    """A published head laid out for drafting; shared between runs, each of which has its own cache."""

    def __init__(self, head: FeatureHead, layout: Layout = plain) -> None:
        self.config, self.draft_ids, self._embedding = head.config, head.draft_ids, head.embedding
        how, tensors = head.config.how, _whole(head)
        about_pictures = ("imadpt.", "img_fc.", "fc.") if head.config.queries else ()
        self._tensors = {name: value for name, value in tensors.items() if name.startswith(about_pictures)}
        self._layers = [_laid_out(head.config, tensors, number, layout) for number in range(head.config.layers)]
        weight, self._bias = _entry(head.config, tensors)
        self._fc = layout(weight)
        normed = how.head_norm and "norm.weight" in tensors
        self._norm = tensors["norm.weight"] if how.feeds_normed else None
        self._head = layout(head.head * tensors["norm.weight"] if normed and not how.feeds_normed else head.head)
        self._unit_before_head = normed and not how.feeds_normed
        self._residual = tensors["layers.0.hidden_norm.weight"] if how.normed_residual else None
        self._rotary = torch.empty(0)
        self.reach(_FIRST_POSITIONS)

    @property
    def embedding(self) -> Tensor:
        """The head's own or the target's, [vocab, hidden]: every state has its device and its kind of numbers."""
        return self._embedding

    @property
    def axes(self) -> int:
        """Positions of a token: 3 (time, height, width) where rates are dealt out to them, else its place alone."""
        return 3 if self.config.how.sections else 1

    @property
    def pictured(self) -> bool:
        """Whether it reads the picture's own embeddings at its places."""
        return self.config.how.pictured

    @property
    def direct(self) -> bool:
        """Whether a picture's embeddings enter the first layer as they are."""
        return self.config.how.direct

    @property
    def queries(self) -> int:
        """Learned queries that compress a picture; 0 where it is read place by place."""
        return self.config.queries

    def compressed(self, picture: Tensor) -> Tensor:
        """What the learned queries make of a picture's embeddings [visual, hidden]: [query, hidden]."""
        part, shape = self._tensors, (self.config.heads, -1)
        keys, values = (
            F.linear(picture, part[f"imadpt.{name}_proj.weight"], part.get(f"imadpt.{name}_proj.bias")).unflatten(-1, shape)
            for name in "kv"
        )
        attended = attend(part["imadpt.q"], keys.transpose(0, 1), values.transpose(0, 1), None)
        return F.linear(attended, part["imadpt.o_proj.weight"])

    def behind(self, whole: Tensor) -> Tensor:
        """What the projection adds to rows behind a picture whose last query answered ``whole`` [hidden]: [hidden]."""
        mixed = F.linear(whole, self._tensors["img_fc.weight"][:, self.config.hidden :])
        return F.linear(mixed, _halves(self._tensors["fc.weight"], self.config)[1])

    def open(self, capacity: int) -> HeadCache:
        """An empty cache with room for ``capacity`` inputs at first."""
        return HeadCache(self.config, capacity, self._embedding)

    def reach(self, positions: int) -> None:
        """Make the rotary table, [2, position, rate], at least this long."""
        if self._rotary.ndim == 1 or self._rotary.shape[1] < positions:
            how = self.config.how
            if how.grid:
                table = grid_rotary(2 * positions, how.grid, how.grid_from, self.config.head_size, how.theta)
            else:
                angle = torch.arange(2 * positions, dtype=torch.float64)[:, None] * rotary_rates(self.config)
                table = torch.stack((angle.cos(), angle.sin())) * how.rotary_scale
            self._rotary = table.to(self._embedding)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states [row, tap * hidden] to what the network takes, [row, hidden]."""
        if not self.config.wide:
            return features
        kind = self.config.how.entry_norm
        if kind == TOGETHER:
            features = self._unit(features)
        elif kind == EACH:
            features = self._unit(features.unflatten(-1, (len(self.config.taps), -1))).flatten(-2)
        return self._project(features)

    def __call__(
        self,
        tokens: Tensor,
        features: Tensor,
        positions: Tensor,
        cache: HeadCache,
        start: int,
        mask: Tensor | None,
        embedded: Tensor | None = None,
        direct: Tensor | None = None,
        behind: Tensor | None = None,
    ) -> Tensor:
        """Outputs [row, hidden]; their keys and values go into the cache from column ``start`` on.

        ``positions`` are places in the text [row], or [4, row]: the place, and the position in time, height and width.
        ``mask`` is bool [row, column] up to and with the new columns; None where every row sees them all. ``embedded``
        [row, hidden] stands for tokens that are no words; those of ``direct``, bool [row], enter the first layer of a narrow
        head as they are. ``behind`` [row, hidden] or [hidden] is added to what the projection gives.
        """
        how = self.config.how
        if embedded is None:
            embedded = F.embedding(tokens, self._embedding)
        if self.config.wide:
            unit = self._unit(features)
            residual = features if self._residual is None else unit * self._residual
            pair = (self._unit(embedded), unit)
        else:
            pair = (self._unit(embedded), self._unit(features)) if self.config.paired else (embedded, features)
        entering = torch.cat(pair if how.embedding_first else pair[::-1], dim=-1)
        if not self.config.wide:
            entering = self._project(entering)
            if behind is not None:
                entering = entering + behind
            residual = entering = entering if direct is None else torch.where(direct[:, None], embedded, entering)
        places, axial = (positions, positions) if positions.ndim == 1 else (positions[0], positions[1:])
        end = start + len(places)
        cache.places[start:end] = places
        apart = places[:, None] - cache.places[None, :end] if any(how.windows) else None
        turns = self._turns(axial)
        for number, layer in enumerate(self._layers):
            seen = mask
            if layer.window and apart is not None:
                near = apart < layer.window
                seen = near if mask is None else mask & near
            inputs = entering if number == 0 and not (self.config.first_norm or self.config.paired) else self._unit(residual)
            residual = residual + self._attended(layer, inputs, turns, cache.layers[number], start, seen)
            residual = residual + layer.feed(self._unit(residual))
        return residual if self._norm is None else self._unit(residual) * self._norm

    def logits(self, outputs: Tensor) -> Tensor:
        """Outputs [row, hidden] to logits [row, support]."""
        return self._head(self._unit(outputs) if self._unit_before_head else outputs)

    def _attended(
        self, layer: _Layer, inputs: Tensor, turns: tuple[Tensor, Tensor], cache: FeatureCache, start: int, mask: Tensor | None
    ) -> Tensor:
        config, rows = self.config, len(inputs)
        gates = config.heads if config.gated else 0
        parts = (config.heads, config.kv_heads, config.kv_heads, gates)
        mixed = _plus(layer.entering(inputs), layer.bias).view(rows, sum(parts), config.head_size)
        queries, keys, values, gate = mixed.split(parts, dim=1)
        if layer.turning is not None:
            queries, keys = (self._unit(x) * weight for x, weight in zip((queries, keys), layer.turning, strict=True))
        if layer.layer_norms:
            (weight, bias), (key_weight, key_bias) = layer.layer_norms
            queries = F.layer_norm(queries, (config.head_size,), eps=_LAYER_NORM_EPS) * weight + bias
            keys = F.layer_norm(keys, (config.head_size,), eps=_LAYER_NORM_EPS) * key_weight + key_bias
        all_keys, all_values = cache.put(start, self._turn(keys, turns), values)
        attended = attend(self._turn(queries, turns), all_keys, all_values, mask)
        if gates:
            attended = attended * gate.flatten(1).sigmoid()
        return _plus(layer.leaving(attended), layer.leaving_bias)

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each [row, 1, rate], of positions [row] or [3, row]."""
        if positions.ndim == 1:
            cosine, sine = self._rotary[:, positions]
        else:
            axis = axis_of_rates(self.config.how, self._rotary.shape[-1]).to(positions.device)
            rates = torch.arange(len(axis), device=positions.device)
            cosine, sine = self._rotary[:, positions[axis].T, rates]
        return cosine[:, None], sine[:, None]

    def _turn(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate [row, head, size]; what lies behind the rates' channels stays."""
        cosine, sine = turns
        count = cosine.shape[-1]
        turned, still = x[..., : 2 * count], x[..., 2 * count :]
        pairs = self.config.how.rotary_pairs
        first, second = (turned[..., ::2], turned[..., 1::2]) if pairs else turned.chunk(2, dim=-1)
        both = (first * cosine - second * sine, second * cosine + first * sine)
        turned = torch.stack(both, dim=-1).flatten(-2) if pairs else torch.cat(both, dim=-1)
        return torch.cat((turned, still), dim=-1) if still.shape[-1] else turned

    def _project(self, x: Tensor) -> Tensor:
        return _plus(self._fc(x), self._bias)

    def _unit(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), eps=self.config.how.eps)


def _whole(head: FeatureHead) -> dict[str, Tensor]:
    """The tensors with every norm's weight as what it multiplies by."""
    how, tensors = head.config.how, dict(head.tensors)
    for name, value in head.tensors.items():
        entry = name in {"embedding_norm.weight", "state_norm.weight"}
        if value.ndim == 1 and name.endswith("norm.weight") and (how.centred_entry if entry else how.centred):
            tensors[name] = 1 + value
    return tensors


def _entry(config: HeadConfig, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """The projection's matrix with what stands before it, norms or the mixing with a picture, and its bias."""
    kind, weight, bias = config.how.entry_norm, tensors["fc.weight"], tensors.get("fc.bias")
    if config.paired:
        norms = (tensors["embedding_norm.weight"], tensors["state_norm.weight"])
        weight = weight * torch.cat(norms if config.how.embedding_first else norms[::-1])
    elif kind == TOGETHER:
        weight = weight * tensors["input_norm.weight"]
    elif kind == EACH:
        weight = weight * torch.cat([tensors[f"fc_norm.{tap}.weight"] for tap in range(len(config.taps))])
    if config.queries:  # the embedding's half, then the state's, which goes through img_fc first
        words, states = _halves(weight, config)
        mixing = tensors["img_fc.weight"][:, : config.hidden]
        mixed = (states.float() @ mixing.float()).to(weight) if weight.dtype != torch.float64 else states @ mixing
        weight = torch.cat((words, mixed) if config.how.embedding_first else (mixed, words), dim=-1)
        if bias is not None:
            bias = bias + F.linear(tensors["img_fc.bias"], states)
    return weight, bias


def _halves(weight: Tensor, config: HeadConfig) -> tuple[Tensor, Tensor]:
    """A narrow projection's columns for the embedding, and for the state."""
    first, second = weight.chunk(2, dim=-1)
    return (first, second) if config.how.embedding_first else (second, first)


def _laid_out(config: HeadConfig, tensors: Mapping[str, Tensor], number: int, layout: Layout) -> _Layer:
    how, start = config.how, f"layers.{number}."
    part = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
    matrices = [part[f"self_attn.{name}_proj.weight"] for name in "qkv"]
    bias = _joined(part, "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
    if config.gated:  # beside each head's queries lie its gates, which go to the end
        queries, gates = matrices[0].unflatten(0, (config.heads, 2, -1)).unbind(1)
        matrices = [queries.flatten(0, 1), *matrices[1:], gates.flatten(0, 1)]
    entering = torch.cat(matrices)
    if config.wide and number == 0:
        norms = (part["input_layernorm.weight"], part["hidden_norm.weight"])
        entering = entering * torch.cat(norms if how.embedding_first else norms[::-1])
    elif "input_layernorm.weight" in part:
        entering = entering * part["input_layernorm.weight"]
    return _Layer(
        entering=layout(entering.contiguous()),
        bias=bias,
        leaving=layout(part["self_attn.o_proj.weight"]),
        leaving_bias=part.get("self_attn.o_proj.bias"),
        feed=_feed(part, layout) if config.experts is None else ExpertLayer(config.experts, part, layout),
        turning=(part["self_attn.q_norm.weight"], part["self_attn.k_norm.weight"]) if config.head_norms else None,
        layer_norms=tuple(
            (part[f"self_attn.{name}_norm.weight"], part[f"self_attn.{name}_norm.bias"])
            for name in ("qk" if config.layer_norms else "")
        ),
        window=how.windows[number] if how.windows else 0,
    )


def _feed(part: Mapping[str, Tensor], layout: Layout) -> Product:
    """A dense feed-forward of what the norm before it gives without its weight."""
    widening = torch.cat((part["mlp.gate_proj.weight"], part["mlp.up_proj.weight"])) * part["post_attention_layernorm.weight"]
    widen, narrow = layout(widening.contiguous()), layout(part["mlp.down_proj.weight"])
    wide_bias, narrow_bias = _joined(part, "mlp.gate_proj.bias", "mlp.up_proj.bias"), part.get("mlp.down_proj.bias")

    def feed(x: Tensor) -> Tensor:
        gate, up = _plus(widen(x), wide_bias).chunk(2, dim=-1)
        return _plus(narrow(F.silu(gate) * up), narrow_bias)

    return feed


def _joined(part: Mapping[str, Tensor], *names: str) -> Tensor | None:
    return torch.cat([part[name] for name in names]) if names[0] in part else None


def _plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias
