"""Feature draft head, shipped or published: EAGLE and EAGLE-3 (arXiv 2401.15077, 2503.01840) and their successors.

:class:`FeatureHead` holds weights and conventions; :class:`FeatureRuntime` drafts with them. In the runtime, norm weights are
folded into the next matrices, and matrices with the same input are joined. Channels are ordered so that one rotation serves all
conventions.

Axis names: ``row``, ``hidden``, ``kv`` (key-value heads), ``size`` (of a head), ``column`` (of the cache), ``support`` (the draft
vocabulary), ``expert``, ``chosen``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.attention import KeyValues, LayerCaches, Layout, Product, attend, plain
from specviz.drafting.networks.head_config import EACH, TOGETHER, Experts, HeadConfig
from specviz.drafting.networks.rotary import Rotating, turn

_FIRST_POSITIONS = 1024
_LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True, eq=False)
class FeatureHead:
    """Weights of a draft head.

    ``tensors``: learned tensors, named as in :meth:`HeadConfig.shapes`. ``embedding`` [vocab, hidden] and ``head`` [support,
    hidden]: the drafter's own or the target's. ``draft_ids`` [support]: token ids of the head's rows, None for the whole
    vocabulary. ``notes``: remarks for the user.
    """

    config: HeadConfig
    tensors: Mapping[str, Tensor]
    embedding: Tensor
    head: Tensor
    draft_ids: Tensor | None
    dialect: str = ""
    notes: tuple[str, ...] = ()

    def read_as(self, **conventions: Any) -> FeatureHead:
        """Return the same weights under other conventions."""
        return replace(self, config=replace(self.config, how=replace(self.config.how, **conventions)))

    def to(self, like: Tensor) -> FeatureHead:
        """Return the same head on the device and in the dtype of ``like``."""
        tensors = {name: value.to(like) for name, value in self.tensors.items()}
        ids = None if self.draft_ids is None else self.draft_ids.to(like.device)
        return replace(self, tensors=tensors, embedding=self.embedding.to(like), head=self.head.to(like), draft_ids=ids)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the learned weights, without embedding and head."""
        return sum(value.nbytes for value in self.tensors.values())

    def runtime(self, layout: Layout = plain) -> FeatureRuntime:
        """Return the inference runtime."""
        return FeatureRuntime(self, layout)


class HeadCache(LayerCaches):
    """Keys and values of one run by layer, and the text position of each column, for windows."""

    def __init__(self, config: HeadConfig, inputs: int, like: Tensor, each: int) -> None:
        super().__init__(config.layers, config, inputs, like, each=each)
        self.places = torch.zeros(self.columns(inputs), dtype=torch.long, device=like.device)

    def reserve(self, inputs: int) -> None:
        super().reserve(inputs)
        columns = self.columns(inputs)
        if columns > len(self.places):
            self.places = F.pad(self.places, (0, max(columns, 2 * len(self.places)) - len(self.places)))

    def copy(self, other: Self, inputs: int) -> None:
        super().copy(other, inputs)
        columns = self.columns(inputs)
        self.places[:columns] = other.places[:columns]

    def place(self, start: int | Tensor, places: Tensor) -> Tensor:
        """Write the text positions of new rows [row]. Returns the positions of the columns up to the last written, [column].

        If ``start`` is a tensor of columns, the positions of the whole cache are returned.
        """
        if isinstance(start, Tensor):
            return self.places.index_copy_(0, start, places)
        self.places[start : start + len(places)] = places
        return self.places[: start + len(places)]


@dataclass
class _Layer:
    """One decoder layer, with norms folded in and matrices packed."""

    entering: Product
    bias: Tensor | None
    leaving: Product
    leaving_bias: Tensor | None
    feed: Product
    norm: Tensor | None
    """Weight of the norm of queries and keys [head + kv, size]."""
    norm_bias: Tensor | None
    """Bias of the norm of queries and keys, if it is a layer norm."""
    window: int


class FeatureRuntime(Rotating):
    """Inference runtime of a draft head, shared between runs, which keep their own caches."""

    def __init__(self, head: FeatureHead, layout: Layout = plain) -> None:
        self.config, self.draft_ids, self.embedding = head.config, head.draft_ids, head.embedding
        how, tensors = head.config.how, _factors_of_norms(head)
        about_pictures = ("imadpt.", "img_fc.", "fc.") if head.config.queries else ()
        self._tensors = {name: value for name, value in tensors.items() if name.startswith(about_pictures)}
        self._layers = [_lay_out(head.config, tensors, number, layout) for number in range(head.config.layers)]
        weight, self._bias = _entry(head.config, tensors)
        self._fc = layout(weight)
        self._norm = tensors["norm.weight"] if how.feeds_normed else None
        entering = tensors.get("norm.weight") if how.head_norm and not how.feeds_normed else None
        matrix = head.head if entering is None else head.head * entering
        if head.config.candidates:
            narrow = tensors["efficient_lm_head_down_proj.weight"]
            narrow = narrow if entering is None else narrow * entering
            self._head: Product = _CandidateHead(matrix, layout(narrow), layout(tensors["efficient_lm_head.weight"]), head.config)
        else:
            self._head = layout(matrix)
        self._unit_before_head = entering is not None
        self._residual = tensors["layers.0.hidden_norm.weight"] if how.normed_residual else None
        axis = head.config.axis_of_channels()
        self._axis = None if axis is None else axis.to(head.embedding.device)
        self._table, self.rotary = self.config.table, self.embedding.new_empty(2, 0)
        self.reach(_FIRST_POSITIONS)

    def compressed(self, picture: Tensor) -> Tensor:
        """Return the learned queries' outputs [query, hidden] for image embeddings [visual, hidden]."""
        part, shape = self._tensors, (self.config.heads, -1)
        keys, values = (
            F.linear(picture, part[f"imadpt.{name}_proj.weight"], part.get(f"imadpt.{name}_proj.bias")).unflatten(-1, shape)
            for name in "kv"
        )
        attended = attend(part["imadpt.q"], keys.transpose(0, 1), values.transpose(0, 1), None)
        return F.linear(attended, part["imadpt.o_proj.weight"])

    def behind(self, whole: Tensor) -> Tensor:
        """Return the vector [hidden] that is added to rows after an image, from the last query's output ``whole`` [hidden]."""
        mixed = F.linear(whole, self._tensors["img_fc.weight"][:, self.config.hidden :])
        return F.linear(mixed, _halves(self._tensors["fc.weight"], self.config)[1])

    def open(self, capacity: int, each: int = 1) -> HeadCache:
        """Return an empty cache for ``capacity`` inputs of ``each`` columns."""
        return HeadCache(self.config, capacity, self.embedding, each)

    def fuse(self, features: Tensor) -> Tensor:
        """Return the head's features [row, hidden] from the target's hidden states [row, tap * hidden]."""
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
        start: int | Tensor,
        mask: Tensor | None,
        embedded: Tensor | None = None,
        direct: Tensor | None = None,
        behind: Tensor | None = None,
    ) -> Tensor:
        """Return outputs [row, hidden]. Keys and values are written to the cache from column ``start`` on, or to columns
        ``start`` [row].

        ``positions``: text positions [row], or [4, row] with the positions in time, height and width too. ``mask``: bool [row,
        column] up to and including the new columns; None if each row attends to all of them. ``embedded`` [row, hidden]:
        embeddings to use instead of the tokens' own. ``direct`` [row], bool: rows that enter the first layer without projection.
        ``behind`` [row, hidden] or [hidden]: vector added to the projection's output.
        """
        config, how = self.config, self.config.how
        if embedded is None:
            embedded = F.embedding(tokens, self.embedding)
        pair = (embedded, features) if how.embedding_first else (features, embedded)
        if config.wide or config.paired:
            entering = self._unit(torch.stack(pair, dim=1)).flatten(1)
        else:
            entering = torch.cat(pair, dim=-1)
        if config.wide:
            residual = features if self._residual is None else self._unit(features) * self._residual
        else:
            entering = self._project(entering)
            if behind is not None:
                entering = entering + behind
            residual = entering = entering if direct is None else torch.where(direct[:, None], embedded, entering)
        places, axial = (positions, positions) if positions.ndim == 1 else (positions[0], positions[1:])
        apart = places[:, None] - cache.place(start, places) if any(how.windows) else None
        turns = self._turns(axial)
        for number, layer in enumerate(self._layers):
            seen = mask
            if layer.window and apart is not None:
                near = apart < layer.window
                seen = near if mask is None else mask & near
            inputs = entering if number == 0 and not (config.first_norm or config.paired) else self._unit(residual)
            residual = residual + self._attention(layer, inputs, turns, cache.layers[number], start, seen)
            residual = residual + layer.feed(self._unit(residual))
        return residual if self._norm is None else self._unit(residual) * self._norm

    def logits(self, outputs: Tensor) -> Tensor:
        """Map outputs [row, hidden] to logits [row, support]; -inf for tokens that are not candidates of a row."""
        return self._head(self._unit(outputs) if self._unit_before_head else outputs)

    def _attention(
        self, layer: _Layer, inputs: Tensor, turns: Tensor, cache: KeyValues, start: int | Tensor, mask: Tensor | None
    ) -> Tensor:
        config = self.config
        heads, turning = config.heads, config.heads + config.kv_heads
        values = turning + config.kv_heads
        mixed = add_bias(layer.entering(inputs), layer.bias).unflatten(-1, (-1, config.head_size))
        turned = mixed[:, :turning]
        if layer.norm is not None:
            layered = layer.norm_bias is not None
            unit = F.layer_norm(turned, (config.head_size,), eps=_LAYER_NORM_EPS) if layered else self._unit(turned)
            turned = add_bias(unit * layer.norm, layer.norm_bias)
        turned = turn(turned, *turns)
        attended = attend(turned[:, :heads], *cache.put(start, turned[:, heads:], mixed[:, turning:values]), mask)
        if config.gated:
            attended = attended * mixed[:, values:].flatten(1).sigmoid()
        return add_bias(layer.leaving(attended), layer.leaving_bias)

    def _turns(self, positions: Tensor) -> Tensor:
        """Return cosines and signed sines [2, row, 1, size] for positions [row] or [3, row]."""
        if positions.ndim == 1 or self._axis is None:
            return self.rotary.index_select(1, positions)[:, :, None]
        channels = torch.arange(len(self._axis), device=positions.device)
        return self.rotary[:, positions[self._axis].T, channels][:, :, None]

    def _project(self, x: Tensor) -> Tensor:
        return add_bias(self._fc(x), self._bias)

    def _unit(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), eps=self.config.how.eps)


class _CandidateHead:
    """Output head that scores only each row's candidates, which a low-rank product chooses (EAGLE-4)."""

    def __init__(self, matrix: Tensor, narrow: Product, wide: Product, config: HeadConfig) -> None:
        self._matrix, self._narrow, self._wide, self._count = matrix, narrow, wide, config.candidates

    def __call__(self, x: Tensor) -> Tensor:
        """Map [row, hidden] to logits [row, vocab]."""
        rough = self._wide(self._narrow(x))
        chosen = rough.topk(self._count, dim=-1).indices
        scores = (self._matrix[chosen] @ x[..., None])[..., 0]
        return torch.full_like(rough, -torch.inf).scatter(-1, chosen, scores)


def _factors_of_norms(head: FeatureHead) -> dict[str, Tensor]:
    """Return the tensors with norm weights as factors: 1 is added to weights stored as offsets from one."""
    how, tensors = head.config.how, dict(head.tensors)
    for name, value in head.tensors.items():
        entry = name in {"embedding_norm.weight", "state_norm.weight"}
        if value.ndim == 1 and name.endswith("norm.weight") and (how.centred_entry if entry else how.centred):
            tensors[name] = 1 + value
    return tensors


def _entry(config: HeadConfig, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return the input projection's matrix, with preceding norms or image mixing folded in, and its bias."""
    kind, weight, bias = config.how.entry_norm, tensors["fc.weight"], tensors.get("fc.bias")
    if config.paired:
        norms = (tensors["embedding_norm.weight"], tensors["state_norm.weight"])
        weight = weight * torch.cat(norms if config.how.embedding_first else norms[::-1])
    elif kind == TOGETHER:
        weight = weight * tensors["input_norm.weight"]
    elif kind == EACH:
        weight = weight * torch.cat([tensors[f"fc_norm.{tap}.weight"] for tap in range(len(config.taps))])
    if config.queries:  # img_fc precedes only the half for the state
        words, states = _halves(weight, config)
        mixing = tensors["img_fc.weight"][:, : config.hidden]
        mixed = (states.float() @ mixing.float()).to(weight) if weight.dtype != torch.float64 else states @ mixing
        weight = torch.cat((words, mixed) if config.how.embedding_first else (mixed, words), dim=-1)
        if bias is not None:
            bias = bias + F.linear(tensors["img_fc.bias"], states)
    return weight, bias


def _halves(weight: Tensor, config: HeadConfig) -> tuple[Tensor, Tensor]:
    """Return a narrow projection's columns for the embedding and for the state."""
    first, second = weight.chunk(2, dim=-1)
    return (first, second) if config.how.embedding_first else (second, first)


def _lay_out(config: HeadConfig, tensors: Mapping[str, Tensor], number: int, layout: Layout) -> _Layer:
    how, channels, part = config.how, config.channels(), layer_tensors(tensors, number)
    weight = projections(config, part, "qkv", "weight")
    assert weight is not None, "a layer attends"
    if config.wide and number == 0:
        norms = (part["input_layernorm.weight"], part["hidden_norm.weight"])
        weight = weight * torch.cat(norms if how.embedding_first else norms[::-1])
    elif "input_layernorm.weight" in part:
        weight = weight * part["input_layernorm.weight"]

    def norm(kind: str) -> Tensor | None:
        """Return the weight or bias of the norm of queries and keys, per head."""
        if f"self_attn.q_norm.{kind}" not in part:
            return None
        sizes = {"q": config.heads, "k": config.kv_heads}
        rows = [part[f"self_attn.{name}_norm.{kind}"].expand(heads, -1) for name, heads in sizes.items()]
        return torch.cat(rows)[:, channels]

    return _Layer(
        entering=layout(weight.contiguous()),
        bias=projections(config, part, "qkv", "bias"),
        leaving=layout(part["self_attn.o_proj.weight"]),
        leaving_bias=part.get("self_attn.o_proj.bias"),
        feed=(
            feed_forward(part, layout, part["post_attention_layernorm.weight"])
            if config.experts is None
            else ExpertLayer(config.experts, part, layout)
        ),
        norm=norm("weight"),
        norm_bias=norm("bias"),
        window=how.windows[number] if how.windows else 0,
    )


def layer_tensors(tensors: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Return the tensors of one layer by their names within it."""
    start = f"layers.{number}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def projections(config: HeadConfig, part: Mapping[str, Tensor], names: str, kind: str) -> Tensor | None:
    """Return the stacked weights or biases of these projections ("qkv") of a layer, or None if it has none of this ``kind``.

    Channels of queries and keys are in the order of :meth:`HeadConfig.channels`. Gates, stored with the queries, come last.
    """
    if f"self_attn.q_proj.{kind}" not in part:
        return None
    rows, gates = [], list[Tensor]()
    for name in names:
        own = part[f"self_attn.{name}_proj.{kind}"].unflatten(0, (-1, config.head_size))
        if name == "q" and config.gated:
            own, gate = own.unflatten(0, (config.heads, 2)).unbind(1)
            gates = [gate]
        rows.append(own if name == "v" else own[:, config.channels().to(own.device)])
    return torch.cat((*rows, *gates)).flatten(0, 1)


def feed_forward(part: Mapping[str, Tensor], layout: Layout, norm: Tensor | None = None, start: str = "mlp") -> Product:
    """Return a dense feed-forward whose names begin with ``start``, with the weight of the preceding ``norm`` folded in."""
    widening = torch.cat((part[f"{start}.gate_proj.weight"], part[f"{start}.up_proj.weight"]))
    widen = layout((widening if norm is None else widening * norm).contiguous())
    narrow = layout(part[f"{start}.down_proj.weight"])
    biases = [part[name] for side in ("gate", "up") if (name := f"{start}.{side}_proj.bias") in part]
    wide_bias, narrow_bias = torch.cat(biases) if biases else None, part.get(f"{start}.down_proj.bias")

    def feed(x: Tensor) -> Tensor:
        gate, up = add_bias(widen(x), wide_bias).chunk(2, dim=-1)
        return add_bias(narrow(F.silu(gate) * up), narrow_bias)

    return feed


def add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


class ExpertLayer:
    """Mixture-of-experts feed-forward: a router chooses a few experts per row; a shared expert may process all rows.

    The weight of the preceding norm is folded into the matrices.
    """

    def __init__(self, experts: Experts, part: Mapping[str, Tensor], layout: Layout) -> None:
        self._experts, norm = experts, part["post_attention_layernorm.weight"]
        self._router = part["mlp.gate.weight"] * norm
        self._correction = part.get("mlp.gate.e_score_correction_bias")
        self._widening, self._narrowing = part["mlp.experts.gate_up_proj"] * norm, part["mlp.experts.down_proj"]
        self._shared = feed_forward(part, layout, norm, "mlp.shared_expert") if experts.shared else None
        self._shared_gate = part["mlp.shared_expert_gate.weight"] * norm if experts.shared_gate else None

    def __call__(self, x: Tensor) -> Tensor:
        """Map [row, hidden] to [row, hidden]."""
        weights, chosen = self.routed(x)
        total = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            row, place = (chosen == expert).nonzero(as_tuple=True)
            gate, up = F.linear(x[row], self._widening[expert]).chunk(2, dim=-1)
            output = F.linear(F.silu(gate) * up, self._narrowing[expert])
            total = total.index_add(0, row, output * weights[row, place, None])
        if self._shared is None:
            return total
        shared = self._shared(x)
        return total + (shared if self._shared_gate is None else shared * F.linear(x, self._shared_gate).sigmoid())

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and indices of each row's experts, both [row, chosen]."""
        experts, wide = self._experts, torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(wide), self._router.to(wide))
        scores = logits.softmax(-1) if experts.scores == "softmax" else logits.sigmoid()
        by = scores if self._correction is None else scores + self._correction.to(wide)
        if experts.groups > 1:  # a group is ranked by the sum of its best two scores
            grouped = by.unflatten(-1, (experts.groups, -1))
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(experts.chosen_groups, dim=-1).indices
            kept = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=x.device).scatter(-1, best, True)
            by = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
        chosen = by.topk(experts.chosen, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if experts.normed:
            weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if experts.scores == "sigmoid" else 0.0))
        return (weights * experts.scale).to(x.dtype), chosen
