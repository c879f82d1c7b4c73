"""Attention weights of a decoder layer, recomputed from the layer's input.

This needs neither a special kernel nor a second model, but works only for Llama-like layers. Axis names: ``head``, ``row``,
``column``, ``layer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, eager_attention_forward

from specviz.engine.attention import additive
from specviz.errors import ModelUnavailable


def text_part(model: Any) -> Any:
    """Return the text decoder of a model, which may be a vision-language model."""
    base = getattr(model, "model", model)
    for name in ("text_model", "language_model"):
        if hasattr(base, name):
            return getattr(base, name)
    return base


def attention_weights(text_model: Any, layer: int, hidden: Tensor, positions: Tensor) -> Tensor:
    """Return the causal attention weights [head, row, column] of layer ``layer`` for the input ``hidden`` [row, hidden].

    ``hidden``: the target's hidden state with index ``layer``. Raises ModelUnavailable if the layer is not Llama-like.
    """
    block = text_model.layers[layer]
    attention = block.self_attn
    if not hasattr(attention, "q_proj") or hasattr(attention, "q_norm") or hasattr(attention, "sliding_window_size"):
        raise ModelUnavailable(f"The attention of {type(block).__name__} cannot be recomputed: choose a Llama-like target.")
    x = block.input_layernorm(hidden[None])
    size = attention.head_dim
    queries, keys = (part(x).view(1, len(hidden), -1, size).transpose(1, 2) for part in (attention.q_proj, attention.k_proj))
    cosine, sine = text_model.rotary_emb(x, positions[None])
    queries, keys = apply_rotary_pos_emb(queries, keys, cosine, sine)
    queries, keys = queries.float(), keys.float()
    causal = additive(torch.ones(len(hidden), len(hidden), dtype=torch.bool, device=x.device).tril(), keys.dtype)
    return eager_attention_forward(attention, queries, keys, keys, causal, attention.scaling)[1][0]


def entropies(text_model: Any, layers: Sequence[int], hidden: Mapping[int, Tensor], positions: Tensor) -> Tensor:
    """Return the entropy of each layer's attention weights in nats, [layer, row], averaged over heads."""
    layer_entropies = [
        torch.special.entr(attention_weights(text_model, layer, hidden[layer], positions)).sum(-1).mean(0) for layer in layers
    ]
    return torch.stack(layer_entropies)


def importance(text_model: Any, hidden: Mapping[int, Tensor], positions: Tensor, places: Sequence[int]) -> Tensor:
    """Return the last layer's attention weights on ``places``, [place], averaged over heads and query rows."""
    last = len(text_model.layers) - 1
    return attention_weights(text_model, last, hidden[last], positions).mean((0, 1))[list(places)]


def most_attended(weights: Tensor, share: float) -> list[int]:
    """Return, in ascending order, the indices of the largest weights: a fraction ``share`` of all, at least one."""
    count = max(1, round(share * len(weights)))
    return sorted(int(index) for index in weights.topk(count).indices)


def middle_layers(layers: int) -> tuple[int, ...]:
    """Return the layers among which the one of least entropy gives the intermediate feature: 1 to half of ``layers``."""
    return tuple(range(1, layers // 2 + 1))
