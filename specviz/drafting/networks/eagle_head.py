"""One-layer draft network over the target's hidden states: EAGLE and EAGLE-3 (arXiv 2401.15077, 2503.01840).

Input i pairs the target's hidden state at token i with the embedding of token i + 1, so the sampled token is known. The output
stands in for the feature at token i + 1 and is fed back with token i + 2.

*Narrow*: a projection of [embedding; feature] enters a decoder layer without input norm, and the target's head reads the output.
*Wide*: the feature is a projection of several hidden states. The layer reads [norm(embedding); norm(feature)], twice as wide; the
feature is the residual; a norm precedes the head.

Axis names: ``row``, ``hidden``, ``head``, ``kv`` (key-value heads), ``size`` (of a head), ``support`` (the draft vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import Layout, plain
from specviz.drafting.networks.head_config import HeadConfig, HeadConventions
from specviz.drafting.networks.network import Network
from specviz.drafting.networks.published_eagle_head import EagleRuntime, PublishedEagleHead
from specviz.drafting.networks.rotary import rates_of


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

    @property
    def sizes(self) -> HeadConfig:
        """The same sizes as those of a published head."""
        how = HeadConventions(self.taps, head_norm=self.wide, theta=self.theta, rates=self.rates, eps=self.eps)
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
            how=how,
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


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, hidden_from: Tensor, own: list[tuple[Tensor, Tensor]] | None = None
) -> Tensor:
    """Return the grouped-query attention output [row, head * size] of queries [row, head, size] over keys and values [column, kv,
    size].

    ``hidden_from``: bool [row, column], True where the column is masked for the row. ``own``: further keys and values, one pair
    [row, kv, size] per earlier draft step; each row attends only to its own.
    """
    rows, heads, size = queries.shape
    groups = keys.shape[1]
    shaped = queries.view(rows, groups, heads // groups, size)
    grouped_queries = shaped.permute(1, 2, 0, 3).reshape(groups, -1, size) * size**-0.5
    scores = (grouped_queries @ keys.permute(1, 2, 0)).view(groups, -1, rows, len(keys))
    scores = scores.masked_fill(hidden_from, float("-inf"))
    own_scores = [torch.einsum("rkgs,rks->kgr", shaped, key)[..., None] * size**-0.5 for key, _ in own or ()]
    weights = torch.cat((scores, *own_scores), dim=-1).softmax(-1)
    attended = weights[..., : len(keys)].reshape(groups, -1, len(keys)) @ values.transpose(0, 1)
    attended = attended.view(groups, -1, rows, size)
    for place, (_, value) in enumerate(own or ()):
        attended = attended + weights[..., len(keys) + place, None] * value.transpose(0, 1)[:, None]
    return attended.permute(2, 0, 1, 3).reshape(rows, heads * size)
