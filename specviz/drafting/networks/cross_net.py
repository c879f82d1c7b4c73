"""Cross-attention drafter network: own self-attention and gated cross-attention to the target's features, DREAM (arXiv
2505.19201).

Three layers: a decoder layer over the target's input embeddings (pictures in place), a cross-attention into the target's
last hidden states, and a decoder layer again. The row of token i reads thoughts up to token i - 1. Its output stands for the
thought at token i, so the target's head turns it into the distribution of token i + 1. Both ways of the cross-attention into
the row are scaled by tanh of a gate; at zero the network is the two decoder layers alone.

While drafting: committed tokens enter all caches from the target's own embeddings and thoughts (``read`` for the thoughts);
a drafted node adds its token's embedding to the first and last layer, its own output to the thoughts, and both are thrown
away after the round. In the cross-attention a node sees column 0, what is committed, and *its own* ancestors: without that
mask siblings would leak into each other.
Axis names: ``row``, ``hidden``, ``head``, ``kv`` (heads of keys), ``size`` (of a head), ``column`` (of a cache).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.feature_net import Attention, FeatureConfig, FeedForward, Norm, attend, rotary
from specviz.errors import ModelUnavailable

NOTHING = 1
"""Columns at the start of the thoughts that hold zeros: what the first row reads, and any row that finds nothing."""


@dataclass(frozen=True)
class CrossConfig(FeatureConfig):
    """As a feature network's. ``taps`` are the target's input embeddings (0) and its last hidden state. ``keep`` is the
    share of visual tokens it was trained to be shown, those that the target's last layer looks at most. The defaults are
    those of the networks that train here; the authors' release differs in where norms stand and in what row 0 finds."""

    keep: float = 0.75
    entry_norm: bool = True
    """Whether a norm stands before the first layer."""
    inner_norms: bool = False
    """Whether the cross-attention and the last layer normalise their inputs."""
    sink: bool = True
    """Whether rows see a column of zeros beside the thoughts. Without it the first row, before which nobody thought, reads the
    mean of the whole prompt's: that is what a softmax gives where everything is masked."""


class Plain(nn.Module):
    """A decoder layer over rows as they are."""

    def __init__(self, config: FeatureConfig, normed: bool = False) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.post_attention_layernorm = Norm(config.hidden, config.eps)
        if normed:
            self.input_layernorm = Norm(config.hidden, config.eps)

    @property
    def entry(self) -> Norm | None:
        """The norm of its input, if it has one."""
        norm: Norm | None = getattr(self, "input_layernorm", None)
        return norm

    def entering(self, x: Tensor) -> Tensor:
        """What attention reads of rows [row, hidden]."""
        return x if self.entry is None else self.entry(x)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Rows and what they saw to the layer's output."""
        x = x + self.self_attn.o_proj(attended)
        return x + self.mlp(self.post_attention_layernorm(x))


class Reading(Plain):
    """The gated cross-attention: queries from rows, keys and values from thoughts, each head's normalised."""

    def __init__(self, config: FeatureConfig, normed: bool = False) -> None:
        super().__init__(config, normed)
        self.q_norm = Norm(config.head_size, config.eps)
        self.k_norm = Norm(config.head_size, config.eps)
        self.gates = nn.Parameter(torch.zeros(2))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """As a plain layer's, both ways in scaled by a gate."""
        first, second = self.gates.tanh()
        x = x + first * self.self_attn.o_proj(attended)
        return x + second * self.mlp(self.post_attention_layernorm(x))


class CrossNet(nn.Module):
    """The network. ``embedding`` and ``head`` [vocab, hidden] are the target's own, frozen and shared."""

    embedding: Tensor
    head: Tensor
    rotary: Tensor
    draft_ids: Tensor | None

    def __init__(self, config: CrossConfig, embedding: Tensor, head: Tensor, draft_ids: Tensor | None = None) -> None:
        super().__init__()
        if embedding.shape != (config.vocab_size, config.hidden):
            raise ModelUnavailable(
                f"This drafter was made for an embedding of {config.vocab_size} x {config.hidden}, "
                f"the target has {embedding.shape[0]} x {embedding.shape[1]}: choose the target it was trained for."
            )
        self.config = config
        self.enter = Norm(config.hidden, config.eps) if config.entry_norm else nn.Identity()
        inner = config.inner_norms
        self.first, self.reading, self.last = Plain(config), Reading(config, inner), Plain(config, inner)
        self.norm = Norm(config.hidden, config.eps)
        rows = head if draft_ids is None or len(head) == len(draft_ids) else head[draft_ids]
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", rows.contiguous(), persistent=False)
        self.register_buffer("draft_ids", None if draft_ids is None else draft_ids.long(), persistent=False)
        self.register_buffer("rotary", rotary(config, config.window).to(embedding), persistent=False)

    def reach(self, positions: int) -> None:
        """Make the rotary table at least this long."""
        if self.rotary.shape[1] < positions:
            self.rotary = rotary(self.config, 2 * positions).to(self.rotary)

    def thoughts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each [row, kv, size], of the target's last hidden states, or of this network's outputs."""
        config, attention = self.config, self.reading.self_attn
        keys = attention.k_proj(features).view(-1, config.kv_heads, config.head_size)
        return self.reading.k_norm(keys), attention.v_proj(features).view(-1, config.kv_heads, config.head_size)

    def nothing(self) -> tuple[Tensor, Tensor]:
        """Keys and values of column 0."""
        zeros = self.embedding.new_zeros(NOTHING, self.config.kv_heads, self.config.head_size)
        return zeros, zeros

    def keys_values(self, layer: Plain, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, each [row, kv, size], of a decoder layer's input."""
        config, attention, x = self.config, layer.self_attn, layer.entering(x)
        keys = attention.k_proj(x).view(-1, config.kv_heads, config.head_size)
        return self._turn(keys, positions), attention.v_proj(x).view(-1, config.kv_heads, config.head_size)

    def within(self, layer: Plain, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor, hidden_from: Tensor) -> Tensor:
        """A decoder layer over rows [row, hidden], given all keys and values [column, kv, size], its own rows' included.

        ``hidden_from`` is bool [row, column]: what a row must not see.
        """
        queries = layer.self_attn.q_proj(layer.entering(x)).view(-1, self.config.heads, self.config.head_size)
        return layer.finish(x, attend(self._turn(queries, positions), keys, values, hidden_from))

    def across(self, x: Tensor, keys: Tensor, values: Tensor, hidden_from: Tensor) -> Tensor:
        """The cross-attention over rows [row, hidden]; keys and values [column, kv, size] are thoughts, column 0 nothing."""
        return self.reading.finish(x, attend(self._queries(x), keys, values, hidden_from))

    def weights(self, x: Tensor, keys: Tensor, hidden_from: Tensor) -> Tensor:
        """How much each row looks at each column, a mean over heads, [row, column]; for the screen."""
        config, queries = self.config, self._queries(x)
        shaped = queries.view(len(queries), config.kv_heads, -1, config.head_size)
        scores = torch.einsum("rkgs,cks->kgrc", shaped, keys) * config.head_size**-0.5
        return scores.masked_fill(hidden_from, float("-inf")).softmax(-1).mean((0, 1))

    def _queries(self, x: Tensor) -> Tensor:
        attention, config = self.reading.self_attn, self.config
        x = self.reading.entering(x)
        return self.reading.q_norm(attention.q_proj(x).view(-1, config.heads, config.head_size))

    def logits(self, outputs: Tensor) -> Tensor:
        """[row, hidden] to logits [row, support]."""
        return F.linear(outputs, self.head)

    def whole(self, embedded: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """A whole text at once: embeddings and thoughts [row, hidden] at ``positions`` [row], all committed.

        Returns outputs, and what the middle layer gave, each [row, hidden]. The last row's thought is not used.
        """
        self.reach(int(positions[-1]) + 1)
        rows = torch.arange(len(embedded), device=embedded.device)
        later = rows[None] > rows[:, None]
        x = self.enter(embedded)
        x = self.within(self.first, x, positions, *self.keys_values(self.first, x, positions), later)
        keys, values = (torch.cat(pair) for pair in zip(self.nothing(), self.thoughts(features[:-1]), strict=True))
        columns = torch.arange(len(keys), device=embedded.device)
        # Column c holds the thought at row c - 1, which row r may read where c - 1 <= r - 1.
        middle = self.across(x, keys, values, columns[None] > rows[:, None])
        x = self.within(self.last, middle, positions, *self.keys_values(self.last, middle, positions), later)
        return self.norm(x), middle

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        cosine, sine = self.rotary[0, positions][:, None], self.rotary[1, positions][:, None]
        return x * cosine + x.roll(x.shape[-1] // 2, -1) * sine
