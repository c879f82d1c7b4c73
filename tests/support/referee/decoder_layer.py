"""A decoder layer of Llama's kind over all rows of a text, worked out from its formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = Mapping[str, Tensor]


def below(part: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, without it, in float64."""
    return {name.removeprefix(prefix): value.double() for name, value in part.items() if name.startswith(prefix)}


def norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt()


def fed(part: Tensors, x: Tensor, eps: float, gate: Tensor | float = 1.0) -> Tensor:
    """Rows [row, hidden] after the feed-forward, as far as the ``gate`` is open."""
    inner = norm(x, part["post_attention_layernorm.weight"], eps)
    gated = F.silu(inner @ part["mlp.gate_proj.weight"].T) * (inner @ part["mlp.up_proj.weight"].T)
    return x + gate * (gated @ part["mlp.down_proj.weight"].T)


def decoder_layer(
    part: Tensors, x: Tensor, places: Tensor, heads: int, theta: float, eps: float, inputs: Tensor | None = None
) -> Tensor:
    """Rows [row, hidden] after the layer; row i stands at ``places[i]``, one position or one a rate, and reads rows up to i.

    It attends ``inputs`` [row, input], by default ``x`` after a norm, which is optional. Keys and values may have fewer heads.
    """
    size = len(part["self_attn.q_proj.weight"]) // heads
    if inputs is None:
        inputs = norm(x, part["input_layernorm.weight"], eps) if "input_layernorm.weight" in part else x
    angle = places.view(len(x), -1).double() * theta ** -(torch.arange(size // 2).double() * 2 / size)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]

    def split(name: str) -> Tensor:
        rows = F.linear(inputs, part[f"self_attn.{name}.weight"], part.get(f"self_attn.{name}.bias")).unflatten(-1, (-1, size))
        return rows.repeat_interleave(heads // rows.shape[1], 1)

    def rotated(rows: Tensor) -> Tensor:
        pairs = torch.complex(rows[..., : size // 2], rows[..., size // 2 :]) * turn
        return torch.cat((pairs.real, pairs.imag), dim=-1)

    scores = torch.einsum("qhs,khs->hqk", rotated(split("q_proj")), rotated(split("k_proj"))) / math.sqrt(size)
    scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
    seen = torch.einsum("hqk,khs->qhs", scores.softmax(-1), split("v_proj")).reshape(len(x), -1)
    return fed(part, x + seen @ part["self_attn.o_proj.weight"].T, eps)
