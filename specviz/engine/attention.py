"""CPU attention kernel for grouped-query heads that does not copy the shared keys and values.

With a mask, transformers' ``sdpa`` repeats keys and values for each query head, in each layer of each pass. torch's CPU kernel
accepts grouped heads, but processes a single row head by head. For one row, the heads of a group are therefore passed as rows:
after 400 tokens this takes 30 us per layer instead of 160 (two Zen 5 cores). All other cases use transformers' function, because
CUDA has no fused kernel for grouped heads with a mask.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED = "specviz_grouped"
"""Name of the kernel in transformers' registry."""


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Return the attention output [batch, row, head, size] of ``query`` [batch, head, row, size].

    ``key`` and ``value`` are [batch, kv, column, size], ``attention_mask`` is [batch, 1, row, column].
    """
    shared = query.shape[1] > key.shape[1] and query.device.type == "cpu"
    single = query.shape[2] == 1
    per_head = attention_mask is not None and attention_mask.shape[1] > 1
    plain = not shared or per_head or (attention_mask is None and not single)
    if plain or any(more.get(name) is not None for name in ("position_bias", "softcap")):
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **more
        )
        return attended
    return attention_on_cpu(query, key, value, attention_mask, dropout, scaling), None


def attention_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0, scaling: float | None = None
) -> Tensor:
    """Return the attention output [batch, row, head, size] of grouped-query heads on a CPU; arguments as in
    :func:`grouped_attention`.

    Several rows are processed head by head, which balances the cores. For a single row, heads become rows.
    """
    single = query.shape[2] == 1
    rows = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3]) if single else query
    output = F.scaled_dot_product_attention(
        rows, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling, enable_gqa=not single
    )
    return output.reshape(query.shape).transpose(1, 2).contiguous()


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bool ``mask`` in additive form: 0 where a row attends, else the minimum of ``dtype``."""
    return torch.full(mask.shape, torch.finfo(dtype).min, dtype=dtype, device=mask.device).masked_fill_(mask, 0)


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
