"""Feature draft head, trained here or published: EAGLE and EAGLE-3 (arXiv 2401.15077, 2503.01840) and their successors.

:class:`EagleHead` is one decoder layer as trained and stored. :class:`PublishedEagleHead` holds weights and conventions of any
such head; :class:`EagleRuntime` drafts with them.

Input i pairs the target's hidden state at token i with the embedding of token i + 1, so the sampled token is known. The output
stands in for the feature at token i + 1 and is fed back with token i + 2.

*Narrow*: a projection of [embedding; feature] enters a decoder layer without input norm, and the target's head reads the output.
*Wide*: the feature is a projection of several hidden states. The layer reads [norm(embedding); norm(feature)], twice as wide; the
feature is the residual; a norm precedes the head.

In the runtime, norm weights are folded into the next matrices, and matrices with the same input are joined. Channels are ordered
so that one rotation serves all conventions.

Axis names: ``row``, ``hidden``, ``head``, ``kv`` (key-value heads), ``size`` (of a head), ``column`` (of the cache), ``support``
(the draft vocabulary).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import (
    DecoderLayer,
    LayerCaches,
    Layout,
    Product,
    add_bias,
    attend,
    layer_tensors,
    plain,
    unit,
)
from specviz.drafting.networks.head_config import CERTAINTY, EACH, TOGETHER, HeadConfig, HeadConventions
from specviz.drafting.networks.network import Network
from specviz.drafting.networks.rotary import Rotating, rates_of

_FIRST_POSITIONS = 1024


@dataclass(frozen=True)
class EagleConfig:
    """Sizes of the network. ``taps``: indices, in transformers' numbering, of the target's hidden states that it reads."""

    vocab_size: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    taps: tuple[int, ...]
    wide: bool
    theta: float = 10000.0
    eps: float = 1e-6
    bias: bool = False
    """Whether the input projection has a bias."""
    window: int = 1024
    """Initial number of positions in the rotary table, which grows on demand."""
    rates: tuple[float, ...] = ()
    """Rotary inverse frequencies [size / 2]; empty: computed from ``theta``."""
    steps: int = 0
    """Number of learned draft-step embeddings; 0 for none."""
    certainty: float = CERTAINTY
    """Mean probability of the head's top token in held-out answers, at temperature 1."""

    @property
    def sizes(self) -> HeadConfig:
        """The same sizes as those of a published head."""
        return HeadConfig(
            vocab_size=self.vocab_size,
            hidden=self.hidden,
            target_hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            inner=self.inner,
            layers=1,
            wide=self.wide,
            how=HeadConventions(self.taps, head_norm=self.wide, theta=self.theta, rates=self.rates, eps=self.eps),
            certainty=self.certainty,
            bias=self.bias,
        )

    @property
    def angles(self) -> Tensor:
        """Rotary inverse frequencies in radians per position, float64 [size / 2]."""
        return torch.tensor(self.rates, dtype=torch.float64) if self.rates else rates_of(self.head_size, self.theta)


class Entry(nn.Linear):
    """Input projection.

    ``scale``: factors that equalise the inputs, some of which are a thousand times larger than others. Stored separately from
    the matrix, the factors stabilise training and let the matrix be quantised to int8.
    """

    scale: Tensor

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.register_buffer("scale", torch.ones(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.scale, self.weight, self.bias)


class Norm(nn.Module):
    """RMS norm with a learned weight."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Training may pass bfloat16: the norm is computed in the weight's dtype.
        return F.rms_norm(x.to(self.weight.dtype), (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """The four projections of grouped-query attention."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.size = config.head_size
        inputs = (2 if config.wide else 1) * config.hidden
        self.q_proj = nn.Linear(inputs, config.heads * config.head_size, bias=False)
        self.k_proj = nn.Linear(inputs, config.kv_heads * config.head_size, bias=False)
        self.v_proj = nn.Linear(inputs, config.kv_heads * config.head_size, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_size, config.hidden, bias=False)

    def queries(self, x: Tensor) -> Tensor:
        """Return queries [row, head, size]."""
        return self.q_proj(x).unflatten(-1, (-1, self.size))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, each [row, kv, size]."""
        shape = (-1, self.size)
        return self.k_proj(x).unflatten(-1, shape), self.v_proj(x).unflatten(-1, shape)


class FeedForward(nn.Module):
    """Gated feed-forward network (SwiGLU)."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.inner, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.inner, bias=False)
        self.down_proj = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer; names as in the published weights."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.post_attention_layernorm = Norm(config.hidden, config.eps)
        if config.wide:
            self.input_layernorm = Norm(config.hidden, config.eps)
            self.hidden_norm = Norm(config.hidden, config.eps)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the output [row, hidden] from the residual and the attention output [row, head * size]."""
        x = residual + self.self_attn.o_proj(attended)
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleHead(Network):
    """Draft head as trained and as stored in our files; :meth:`as_head` converts it to the published layout.

    ``embedding`` [vocab, hidden] and ``head`` [support, hidden]: the target's tensors, frozen and shared. ``draft_ids``
    [support]: token ids of the head's rows, None for the whole vocabulary.
    """

    title, shape = "feature drafter", EagleConfig
    head: Tensor

    def __init__(self, config: EagleConfig, embedding: Tensor, head: Tensor, draft_ids: Tensor | None = None) -> None:
        super().__init__(config, embedding, head, draft_ids, config.angles, config.window)
        self.fc = Entry((len(config.taps) if config.wide else 2) * config.hidden, config.hidden, config.bias)
        self.layer = Layer(config)
        if config.wide:
            self.norm = Norm(config.hidden, config.eps)
        if config.steps:
            self.steps = nn.Parameter(torch.zeros(config.steps, config.hidden))

    def as_head(self, dialect: str = "") -> PublishedEagleHead:
        """Return the same weights under their published names, with the input scale folded into the projection matrix.

        Step embeddings have no published name and are omitted; drafters that use them add them to the features themselves.
        """
        sizes = self.config.sizes
        named = {name.replace("layer.", "layers.0.", 1): value.detach() for name, value in self.state_dict().items()}
        named["fc.weight"] = named["fc.weight"] * named.pop("fc.scale")
        tensors = {name: named[name] for name in sizes.shapes()}
        return PublishedEagleHead(sizes, tensors, self.embedding, self.head, self.draft_ids, dialect)

    def runtime(self, layout: Layout = plain) -> EagleRuntime:
        """Return the inference runtime, which takes image embeddings at image positions."""
        return self.as_head().read_as(pictured=True).runtime(layout)

    def fuse(self, features: Tensor) -> Tensor:
        """Return the layer's features [row, hidden] from the target's hidden states [row, tap * hidden]."""
        return self.fc(features) if self.config.wide else features

    def stepped(self, features: Tensor, step: int) -> Tensor:
        """Return features [row, hidden] plus the embedding of draft step ``step``; step 0 marks the target's hidden states."""
        return features + self.steps[min(step, self.config.steps - 1)] if self.config.steps else features

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention's input and the residual, from the next tokens' embeddings and features, both [row, hidden].

        Features are fused hidden states of the target, or outputs of this network.
        """
        if self.config.wide:
            pair = (self.layer.input_layernorm(embedded), self.layer.hidden_norm(features))
            return torch.cat(pair, dim=-1), features
        entered = self.fc(torch.cat((embedded, features), dim=-1))
        return entered, entered

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return rotated queries [row, head, size]."""
        return self.turn(self.layer.self_attn.queries(x), positions)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated keys, and values, each [row, kv, size]."""
        keys, values = self.layer.self_attn.keys_values(x)
        return self.turn(keys, positions), values

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the output [row, hidden] from the residual and the attention output [row, head * size]."""
        return self.layer.finish(residual, attended)

    def ready(self, output: Tensor) -> Tensor:
        """Return the head's input for an output of the layer."""
        return self.norm(output) if self.config.wide else output

    def logits(self, output: Tensor) -> Tensor:
        """Map [row, hidden] to logits [row, support]."""
        return F.linear(self.ready(output), self.head)


@dataclass(frozen=True, eq=False)
class PublishedEagleHead:
    """Draft head in the published layout: weights and conventions.

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

    def read_as(self, **conventions: Any) -> PublishedEagleHead:
        """Return the same weights under other conventions."""
        return replace(self, config=replace(self.config, how=replace(self.config.how, **conventions)))

    def to(self, like: Tensor) -> PublishedEagleHead:
        """Return the same head on the device and in the dtype of ``like``."""
        tensors = {name: value.to(like) for name, value in self.tensors.items()}
        ids = None if self.draft_ids is None else self.draft_ids.to(like.device)
        return replace(self, tensors=tensors, embedding=self.embedding.to(like), head=self.head.to(like), draft_ids=ids)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the learned weights, without embedding and head."""
        return sum(value.nbytes for value in self.tensors.values())

    def runtime(self, layout: Layout = plain) -> EagleRuntime:
        """Return the inference runtime."""
        return EagleRuntime(self, layout)


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


class EagleRuntime(Rotating):
    """Inference runtime of a draft head, shared between runs, which keep their own caches."""

    def __init__(self, head: PublishedEagleHead, layout: Layout = plain) -> None:
        self.config, self.draft_ids, self.embedding = head.config, head.draft_ids, head.embedding
        how, tensors = head.config.how, _factors_of_norms(head)
        about_pictures = ("imadpt.", "img_fc.", "fc.") if head.config.queries else ()
        self._tensors = {name: value for name, value in tensors.items() if name.startswith(about_pictures)}
        self._layers = []
        for number in range(head.config.layers):
            part = layer_tensors(tensors, number)
            before = part.get("input_layernorm.weight")
            if head.config.wide and number == 0:
                norms = (part["input_layernorm.weight"], part["hidden_norm.weight"])
                before = torch.cat(norms if how.embedding_first else norms[::-1])
            self._layers.append(DecoderLayer(head.config, part, layout, before, part["post_attention_layernorm.weight"]))
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
            features = unit(features, self.config)
        elif kind == EACH:
            features = unit(features.unflatten(-1, (len(self.config.taps), -1)), self.config).flatten(-2)
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
            entering = unit(torch.stack(pair, dim=1), config).flatten(1)
        else:
            entering = torch.cat(pair, dim=-1)
        if config.wide:
            residual = features if self._residual is None else unit(features, config) * self._residual
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
            if apart is not None and how.windows[number]:
                near = apart < how.windows[number]
                seen = near if mask is None else mask & near
            inputs = entering if number == 0 and not (config.first_norm or config.paired) else unit(residual, config)
            residual = layer(inputs, residual, turns, cache.layers[number], start, seen)
        return residual if self._norm is None else unit(residual, config) * self._norm

    def logits(self, outputs: Tensor) -> Tensor:
        """Map outputs [row, hidden] to logits [row, support]; -inf for tokens that are not candidates of a row."""
        return self._head(unit(outputs, self.config) if self._unit_before_head else outputs)

    def _turns(self, positions: Tensor) -> Tensor:
        """Return cosines and signed sines [2, row, 1, size] for positions [row] or [3, row]."""
        if positions.ndim == 1:
            return self.rotary.index_select(1, positions)[:, :, None]
        channels = torch.arange(self.config.head_size, device=positions.device)
        return self.rotary[:, positions[self._axis].T, channels][:, :, None]

    def _project(self, x: Tensor) -> Tensor:
        return add_bias(self._fc(x), self._bias)


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


def _factors_of_norms(head: PublishedEagleHead) -> dict[str, Tensor]:
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
