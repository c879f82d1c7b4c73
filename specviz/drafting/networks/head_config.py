"""Sizes of a feature draft head (EAGLE's family), and the conventions in which heads of the same shape differ.

Conventions, such as where a norm is applied or which hidden states are read, often leave no trace in the tensors. They are data
here, so the same weights can be run under other conventions. :mod:`specviz.drafting.networks.eagle_head` runs the head.

Axis names: ``row``, ``hidden``, ``vocab``, ``rate``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.rotary import grid_rotary, halves, rates_of

TOGETHER = "together"
EACH = "each"
CERTAINTY = 0.3
"""Mean probability of the top token, if unmeasured."""


@dataclass(frozen=True)
class HeadConventions:
    """Conventions of a head's computation that the tensors do not show. The defaults are those of the EAGLE-3 paper.

    ``taps``: the target's hidden states that the head reads, as transformers numbers them, in the order of the projection's
    columns.
    """

    taps: tuple[int, ...]
    entry_norm: str = ""
    """Norm before the input projection: "" for none, TOGETHER for one over the concatenated states, EACH for one per state."""
    normed_residual: bool = False
    """Whether the attention's residual is the normalised state, not the state itself (``norm_before_residual``)."""
    feeds_normed: bool = False
    """Whether the next draft step reads the normalised output, not the output itself (``norm_output``)."""
    head_norm: bool = True
    """Whether a norm precedes the output head."""
    embedding_first: bool = True
    """Whether the embedding precedes the state in the input of the first layer or of the narrow projection."""
    theta: float = 10000.0
    rates: tuple[float, ...] = ()
    """Rotary inverse frequencies, [rotated size / 2]; empty: computed from ``theta``."""
    rotary_scale: float = 1.0
    """Factor on cosines and sines (YaRN)."""
    rotary_pairs: bool = False
    """Whether adjacent channels rotate together (GPT-J), not the two halves (NeoX)."""
    sections: tuple[int, ...] = ()
    """Numbers of frequencies for time, height and width, if tokens have three positions (mrope)."""
    sections_woven: bool = False
    """Whether the frequencies of time, height and width alternate instead of forming three blocks."""
    grid: int = 0
    """Cells per row of the image if positions are rows and columns (LlamaGen); 0 for ordinary positions."""
    grid_from: int = 0
    """With ``grid``, the index of the image's first cell; earlier tokens have no position."""
    windows: tuple[int, ...] = ()
    """Attention window of each layer in positions, 0 for the whole text; () if no layer has a window."""
    pictured: bool = False
    """Whether image positions take the image embeddings instead of the placeholder's embedding."""
    direct: bool = False
    """Whether image embeddings bypass the input projection and have no state (MSD, ViSpec)."""
    eps: float = 1e-6
    centred: bool = False
    """Whether norm weights, except those of the entry norms, are stored as offsets from one (Qwen3-Next, Qwen3.5)."""
    centred_entry: bool = False
    """Whether the weights of the norms of embedding and state before the projection are stored as offsets from one."""


@dataclass(frozen=True)
class Experts:
    """Mixture-of-experts feed-forward: ``count`` experts, ``chosen`` per row, and a shared one of inner size ``shared`` (0:
    none).

    ``shared_gate``: whether the shared expert is gated. ``scores``: the router's "softmax" or "sigmoid". ``corrected``: whether a
    bias is added to the scores for the choice. ``groups``, ``chosen_groups``: groups of experts, and how many are chosen first.
    ``normed``: whether the weights of a row sum to ``scale``.
    """

    count: int
    chosen: int
    inner: int
    shared: int = 0
    shared_gate: bool = False
    scores: str = "softmax"
    corrected: bool = False
    normed: bool = True
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors by name; the gate and up matrices of the experts form one tensor."""
        shapes: dict[str, tuple[int, ...]] = {
            "mlp.gate.weight": (self.count, hidden),
            "mlp.experts.gate_up_proj": (self.count, 2 * self.inner, hidden),
            "mlp.experts.down_proj": (self.count, hidden, self.inner),
        }
        if self.corrected:
            shapes["mlp.gate.e_score_correction_bias"] = (self.count,)
        if self.shared:
            sizes = {"gate": (self.shared, hidden), "up": (self.shared, hidden), "down": (hidden, self.shared)}
            shapes |= {f"mlp.shared_expert.{part}_proj.weight": size for part, size in sizes.items()}
        if self.shared_gate:
            shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
        return shapes


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and conventions of a head.

    ``wide``: the first layer reads [embedding; state] (EAGLE-3), not a projection of both (EAGLE). ``paired``: embedding and
    state are normalised before the projection, and complete layers and a norm follow (MTP).
    """

    vocab_size: int
    hidden: int
    target_hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    layers: int
    wide: bool
    how: HeadConventions
    certainty: float = CERTAINTY
    bias: bool = False
    """Whether the input projection has a bias."""
    attention_bias: bool = False
    """Whether queries, keys and values have biases."""
    output_bias: bool = False
    """Whether the attention output has a bias."""
    mlp_bias: bool = False
    head_norms: bool = False
    """Whether queries and keys are RMS-normalised per head (Qwen3)."""
    layer_norms: bool = False
    """Whether queries and keys pass layer norms with weights and biases per head (Chameleon)."""
    first_norm: bool = False
    """Whether the first layer of a narrow head normalises its input, as later layers do."""
    queries: int = 0
    """Number of learned queries that compress an image (ViSpec); 0 for no compression.

    The output of the last query is added to the states after the image; the outputs of the other queries replace the image.
    """
    paired: bool = False
    gated: bool = False
    """Whether the attention output is multiplied by a gate, stored in the query projection after each head (Qwen3.5)."""
    experts: Experts | None = None
    """Experts of the feed-forward; None if it is dense."""
    candidates: int = 0
    """Tokens per row that a low-rank head chooses for the output head to score (EAGLE-4); 0 to score the whole vocabulary."""
    rank: int = 0
    """Rank of the low-rank head."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's hidden states that the head reads."""
        return self.how.taps

    @property
    def rates(self) -> Tensor:
        """Rotary inverse frequencies in radians per position, float64 [rate]; unused with ``grid``."""
        how = self.how
        return torch.tensor(how.rates, dtype=torch.float64) if how.rates else rates_of(self.head_size, how.theta)

    def table(self, positions: int) -> Tensor:
        """Return cosines and signed sines [2, position, size], float64, for channels in the order of :meth:`channels`."""
        how, size = self.how, self.head_size
        if how.grid:
            return halves(grid_rotary(positions, how.grid, how.grid_from, size, how.theta))
        angle = torch.arange(positions, dtype=torch.float64)[:, None] * self.rates
        cosine, sine = angle.cos() * how.rotary_scale, angle.sin() * how.rotary_scale
        still = size // 2 - angle.shape[1]
        return halves(torch.stack((F.pad(cosine, (0, still), value=1.0), F.pad(sine, (0, still)))))

    def channels(self) -> Tensor:
        """Return the order [size] of a published head's channels in which the two halves rotate together.

        Adjacent channels that rotate together are separated, and channels that do not rotate end each half.
        """
        turned = torch.arange(self.head_size if self.how.grid else 2 * len(self.rates))
        first, second = (turned[::2], turned[1::2]) if self.how.rotary_pairs else turned.chunk(2)
        still = torch.arange(len(turned), self.head_size).view(2, -1)
        return torch.cat((first, still[0], second, still[1]))

    def axis_of_channels(self) -> Tensor | None:
        """Return the axis of each channel [size] (0 time, 1 height, 2 width), or None if tokens have one position."""
        sections = self.how.sections
        if not sections:
            return None
        axis = torch.zeros(self.head_size // 2, dtype=torch.long)
        for number in (1, 2):
            if self.how.sections_woven:
                axis[number : 3 * sections[number] : 3] = number
            else:
                axis[sum(sections[:number]) : sum(sections[: number + 1])] = number
        return axis.repeat(2)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the learned tensors by published name."""
        hidden, entering = self.hidden, len(self.taps) * self.target_hidden
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, entering if self.wide else 2 * hidden)}
        if self.bias:
            shapes["fc.bias"] = (hidden,)
        if self.how.entry_norm == TOGETHER:
            shapes["input_norm.weight"] = (entering,)
        elif self.how.entry_norm == EACH:
            shapes |= {f"fc_norm.{tap}.weight": (self.target_hidden,) for tap in range(len(self.taps))}
        for layer in range(self.layers):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in self._layer(layer).items()}
        if self.paired:
            shapes |= {"embedding_norm.weight": (hidden,), "state_norm.weight": (hidden,)}
        if self.wide or self.paired:
            shapes["norm.weight"] = (hidden,)
        if self.queries:
            square = (hidden, hidden)
            shapes |= {"imadpt.q": (self.queries, self.heads, hidden // self.heads), "imadpt.o_proj.weight": square}
            for part in "kv":
                shapes[f"imadpt.{part}_proj.weight"] = square
                if self.attention_bias:
                    shapes[f"imadpt.{part}_proj.bias"] = (hidden,)
            shapes["img_fc.weight"] = (hidden, 2 * hidden)
            if self.bias:
                shapes["img_fc.bias"] = (hidden,)
        if self.candidates:
            shapes |= {"efficient_lm_head_down_proj.weight": (self.rank, hidden)}
            shapes |= {"efficient_lm_head.weight": (self.vocab_size, self.rank)}
        return shapes

    def _layer(self, layer: int) -> dict[str, tuple[int, ...]]:
        hidden, width = self.hidden, self.hidden * (2 if self.wide and layer == 0 else 1)
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj.weight": (2 * queries if self.gated else queries, width),
            "self_attn.k_proj.weight": (keys, width),
            "self_attn.v_proj.weight": (keys, width),
            "self_attn.o_proj.weight": (hidden, queries),
            "post_attention_layernorm.weight": (hidden,),
        }
        if self.experts is None:
            dense = {"gate": (self.inner, hidden), "up": (self.inner, hidden), "down": (hidden, self.inner)}
            shapes |= {f"mlp.{part}_proj.weight": size for part, size in dense.items()}
        else:
            shapes |= self.experts.shapes(hidden)
        if self.wide or self.paired or self.first_norm or layer > 0:
            shapes["input_layernorm.weight"] = (hidden,)
        if self.wide and layer == 0:
            shapes["hidden_norm.weight"] = (hidden,)
        if self.head_norms:
            shapes |= {"self_attn.q_norm.weight": (self.head_size,), "self_attn.k_norm.weight": (self.head_size,)}
        if self.layer_norms:
            for name, heads in (("q", self.heads), ("k", self.kv_heads)):
                shapes |= {f"self_attn.{name}_norm.{part}": (heads, self.head_size) for part in ("weight", "bias")}
        biased = [f"self_attn.{part}_proj" for part in "qkv" if self.attention_bias]
        biased += ["self_attn.o_proj"] if self.output_bias else []
        biased += [f"mlp.{part}_proj" for part in ("gate", "up", "down") if self.mlp_bias]
        return shapes | {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in biased}
