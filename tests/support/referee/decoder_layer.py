"""A decoder layer of Llama's kind over all rows of a text, worked out from its formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def decoder_layer(part: Mapping[str, Tensor], x: Tensor, places: Tensor, heads: int, theta: float, eps: float) -> Tensor:
    """Rows [row, hidden] after the layer; row i stands at ``places[i]`` and reads rows up to i.

    A norm before is optional, and keys and values may have fewer heads.
    """
    size = len(part["self_attn.q_proj.weight"]) // heads

    def norm(rows: Tensor, name: str) -> Tensor:
        return part[f"{name}.weight"] * rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt()

    inputs = norm(x, "input_layernorm") if "input_layernorm.weight" in part else x
    angle = places[:, None].double() * theta ** -(torch.arange(size // 2).double() * 2 / size)
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
    x = x + seen @ part["self_attn.o_proj.weight"].T
    inner = norm(x, "post_attention_layernorm")
    gated = F.silu(inner @ part["mlp.gate_proj.weight"].T) * (inner @ part["mlp.up_proj.weight"].T)
    return x + gated @ part["mlp.down_proj.weight"].T
