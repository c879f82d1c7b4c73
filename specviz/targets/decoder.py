"""Passes of Llama-like decoders as regions: one before the layers, one for all layers, one after them.

A layer's weights, keys and values, and slots are arguments, so all layers of a model share one region. A layer's last product is
returned separately from the residual stream, because their sum is fused into the next norm. Axis names: ``row``, ``hidden``,
``head``, ``kv`` (key-value heads), ``group`` (query heads that share a key-value head), ``size`` (of a head), ``column`` (of
the cache).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.engine.attention import additive
from specviz.engine.cache import KeyValues
from specviz.engine.regions import Call, Regions, compiled, growing
from specviz.engine.tiers import Outputs

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Model types whose layers :func:`layer` computes."""


def enter(
    tokens: Tensor, places: Tensor, mask: Tensor, embedding: Tensor, rates: Tensor, scaling: float, group: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Map tokens [1, row] at ``places`` [row] to the residual stream and a zero product [1, row, hidden].

    Further results: the rotary table [2, row, size], and the bool ``mask`` [row, column] in additive form, [row * group,
    column].
    """
    x = F.embedding(tokens, embedding)
    angles = torch.outer(places.float(), rates)
    sine = angles.sin()
    table = torch.stack((torch.cat((angles, angles), -1).cos(), torch.cat((-sine, sine), -1)))
    return x, torch.zeros_like(x), (table * scaling).to(x.dtype), additive(mask, x.dtype).repeat_interleave(group, 0)


def layer(
    x: Tensor, product: Tensor, table: Tensor, mask: Tensor, slots: Tensor, entries: Tensor, weights: Sequence[Any],
    columns: int, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Run one layer. Keys and values are written at ``slots`` [row] of ``entries`` [2, kv, column, size], of which the first
    ``columns`` are attended to.
    """
    own = LayerWeights(*weights)
    x = x + product
    rows, kv, size = x.shape[1], entries.shape[1], entries.shape[3]
    mixed = F.linear(_norm(x, own.before, eps), own.entering, own.bias).view(rows, -1, size)
    heads = mixed.shape[1] - 2 * kv
    rotated = mixed[:, : heads + kv]
    if own.turning is not None:
        rotated = _norm(rotated, own.turning, eps)
    queries = _turn(rotated[:, :heads].view(rows, kv, -1, size).transpose(0, 1), table)
    # In the layout of the queries, so that rotation and both writes are one kernel: a group's first head writes the key, the
    # other heads write the value, which is the same for each.
    part = torch.arange(max(2, heads // kv), device=x.device).clamp_max(1)
    keys, values = (one.transpose(0, 1)[:, :, None] for one in (rotated[:, heads:], mixed[:, heads + kv :]))
    fresh = torch.where(part[:, None] == 0, _turn(keys, table), values)
    entries.index_put_((part, torch.arange(kv, device=x.device)[:, None, None], slots[:, None]), fresh)
    seen_keys, seen_values = entries.narrow(2, 0, columns)[:, :, None]
    attended = F.scaled_dot_product_attention(queries.reshape(kv, 1, -1, size), seen_keys, seen_values, mask)
    attended = attended.view(kv, rows, -1, size).transpose(0, 1).reshape(1, rows, -1)
    x = x + F.linear(attended, own.leaving)
    gate, up = F.linear(_norm(x, own.between, eps), own.widening).chunk(2, -1)
    return x, F.linear(F.silu(gate) * up, own.narrowing)


def leave(x: Tensor, product: Tensor, last: Tensor, head: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the logits [row, vocab] and the last norm's output [row, hidden]."""
    x = _norm(x + product, last, eps)[0]
    return F.linear(x, head), x


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm, rounded where transformers rounds."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def _turn(x: Tensor, table: Tensor) -> Tensor:
    """Rotate x [kv, row, group, size]. The sine's first half is negative."""
    cosine, sine = table[:, :, None]
    return x * cosine + x.unflatten(-1, (2, -1)).flip(-2).flatten(-2) * sine


class LayerWeights(NamedTuple):
    """Weights of a layer. ``entering``: queries, keys and values, stacked [(head + 2 kv) * size, hidden]. ``widening``: gate
    and up, stacked. ``before``, ``between``: weights of the norms before these two. ``turning`` [head + kv, size]: norm weights
    of queries and keys, if any.
    """

    before: Tensor
    entering: Tensor
    bias: Tensor | None
    turning: Tensor | None
    leaving: Tensor
    between: Tensor
    widening: Tensor
    narrowing: Tensor


def matrix(linear: Any) -> Tensor:
    """Matrix [out, in] of a linear layer, unpacked if only the packed form is kept."""
    packed = getattr(linear, "packed", None)
    weight: Tensor = linear.weight if packed is None or linear.weight is not None else packed.to_dense()
    return weight.detach()


def layer_weights(block: Any, heads: int, kv_heads: int) -> LayerWeights:
    """Read a layer's weights. Raises AttributeError for a layer of another architecture."""
    attention, mlp = block.self_attn, block.mlp
    entering = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [part.bias for part in entering if part.bias is not None]
    norms = None
    if hasattr(attention, "q_norm"):
        queries = attention.q_norm.weight.expand(heads, -1)
        norms = torch.cat((queries, attention.k_norm.weight.expand(kv_heads, -1)))
    return LayerWeights(
        before=block.input_layernorm.weight.detach(),
        entering=torch.cat([matrix(part) for part in entering]),
        bias=torch.cat(biases) if biases else None,
        turning=norms,
        leaving=matrix(attention.o_proj),
        between=block.post_attention_layernorm.weight.detach(),
        widening=torch.cat((matrix(mlp.gate_proj), matrix(mlp.up_proj))),
        narrowing=matrix(mlp.down_proj),
    )


def _share(weight: Tensor, parts: Sequence[Any]) -> None:
    """Make the layers' matrices views of their stacked matrix."""
    for part, rows in zip(parts, weight.split([part.out_features for part in parts]), strict=True):
        if type(part) is nn.Linear:
            part.weight = nn.Parameter(rows, requires_grad=False)


def refusal(model: Any) -> str:
    """Return the reason why this model's passes cannot be regions, or an empty string."""
    config = model.config.get_text_config()
    if config.model_type not in ARCHITECTURES:
        return f"only {', '.join(ARCHITECTURES)} models have compiled passes, not {config.model_type}"
    if getattr(config, "mlp_bias", False) or getattr(config, "attention_bias", False):
        return "its layers have biases that compiled passes do not compute"
    linears = [module for module in model.modules() if hasattr(module, "in_features")]
    if not all(type(module) is nn.Linear or hasattr(module, "packed") for module in linears):
        return "its matrices are quantised"
    return ""


class Decoder:
    """Weights of a model in the form that its ``regions`` take.

    Joining matrices changes their addresses, so create this object before anything captures the model.
    """

    def __init__(self, model: Any) -> None:
        config, body = model.config, model.model
        heads, kv = config.num_attention_heads, config.num_key_value_heads
        self.layers = list[list[Any]]()
        for block in body.layers:
            weights, attention, mlp = layer_weights(block, heads, kv), block.self_attn, block.mlp
            _share(weights.entering, (attention.q_proj, attention.k_proj, attention.v_proj))
            _share(weights.widening, (mlp.gate_proj, mlp.up_proj))
            self.layers.append([*weights])
        self.embedding, self.last, self.head = (
            part.detach() for part in (body.embed_tokens.weight, body.norm.weight, matrix(model.get_output_embeddings()))
        )
        self.rates, self.scaling = body.rotary_emb.inv_freq, float(body.rotary_emb.attention_scaling)
        self.eps, self.kv, self.group = float(config.rms_norm_eps), kv, heads // kv
        self.regions = Regions(self._calls)

    def forward(self, tokens: Tensor, places: Tensor, mask: Tensor, cache: KeyValues, taps: Sequence[int]) -> Outputs:
        """Like :meth:`TextTarget.run`, for a pass that writes at the cache's slots. ``tokens`` [1, row], ``places`` [row], bool
        ``mask`` [row, column].
        """
        given = (tokens, places, mask, self.embedding, self.rates, self.scaling, self.group)
        x, product, table, visible = compiled(enter)(*given)
        hidden: dict[int, Tensor] = {}
        for number, weights in enumerate(self.layers):
            if number in taps:
                hidden[number] = (x + product)[0]
            entries = growing(cache.entries(number), 2)
            x, product = compiled(layer)(x, product, table, visible, cache.slots, entries, weights, cache.columns, self.eps)
        logits, hidden[len(self.layers)] = compiled(leave)(x, product, self.last, self.head, self.eps)
        return logits, hidden

    @torch.inference_mode()
    def _calls(self, width: int, columns: int) -> list[Call]:
        """Return the three regions with example arguments for a pass of ``width`` rows."""
        like, counts = self.embedding, dict[str, Any](dtype=torch.long, device=self.embedding.device)
        with torch.inference_mode(False):
            tokens = torch.zeros(1, width, **counts)  # like the static inputs
        places = torch.zeros(width, **counts)
        mask = torch.ones(width, columns, dtype=torch.bool, device=like.device)
        x, size = like.new_zeros(1, width, like.shape[1]), 2 * len(self.rates)
        table, visible = like.new_zeros(2, width, size), like.new_zeros(width * self.group, columns)
        entries = growing(like.new_zeros(2, 1, self.kv, 2 * columns, size)[:, 0], 2)
        stream = (x, torch.zeros_like(x))
        return [
            (enter, (tokens, places, mask, self.embedding, self.rates, self.scaling, self.group)),
            (layer, (*stream, table, visible, places, entries, self.layers[0], columns, self.eps)),
            (leave, (*stream, self.last, self.head, self.eps)),
        ]
