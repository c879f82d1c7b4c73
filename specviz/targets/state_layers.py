"""Layers of transformers models with recurrent mixers, by role. No other module knows the attribute names of these classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specviz.errors import ModelUnavailable


@dataclass(frozen=True)
class Block:
    """One layer: ``norm``, then a mixer or attention, then optionally ``feed_norm`` and a feed-forward."""

    norm: Any
    mixer: Any = None
    attention: Any = None
    feed_norm: Any = None
    feed: Any = None


@dataclass(frozen=True)
class Anatomy:
    """Parts of a model.

    ``rotary``: None if no layer uses rotary positions. ``wide``: whether the residual stream is kept in at least float32.
    ``residual``: factor on the output of each mixer, attention and feed-forward before it is added.
    """

    embed: Any
    blocks: tuple[Block, ...]
    norm: Any
    head: Any
    rotary: Any = None
    wide: bool = False
    residual: float = 1.0


@dataclass(frozen=True)
class Scale:
    """Weight [hidden] of an RMS norm, in the dtype of the multiplication, and epsilon."""

    weight: Tensor
    eps: float


def scale_of(norm: Any) -> Scale:
    """Return the scale of a norm module. A weight stored as an offset from one is converted in at least float32."""
    if type(norm).__name__ in _CENTRED:
        return Scale(1 + norm.weight.detach().to(torch.promote_types(norm.weight.dtype, torch.float32)), norm.eps)
    return Scale(norm.weight, norm.variance_epsilon)


def anatomy(model: Any) -> Anatomy:
    """Return the parts of ``model``. Raises ModelUnavailable if its class is not supported."""
    kind, config = type(model).__name__, model.config
    if kind not in NAMES:
        raise ModelUnavailable(
            f"{kind} has recurrent layers, and only Mamba-2's and the gated delta rule's can hold the branches "
            f"of a draft tree here: choose a target of the classes {', '.join(NAMES)}, or one with attention layers only."
        )
    body_name, embed, norm, parts = NAMES[kind]
    body = getattr(model, body_name)
    blocks = tuple(Block(*(getattr(layer, name, None) for name in parts)) for layer in body.layers)
    made = Anatomy(getattr(body, embed), blocks, getattr(body, norm), model.lm_head, getattr(body, "rotary_emb", None))
    if kind == "Mamba2ForCausalLM":
        return replace(made, wide=bool(config.residual_in_fp32))
    if kind != "GraniteMoeHybridForCausalLM":
        return made
    # Granite 4.0 H: four multipliers, a shared feed-forward in addition to any experts, attention without positions.
    blocks = tuple(
        replace(block, feed=_summed(layer.block_sparse_moe, block.feed)) if layer.has_experts else block
        for block, layer in zip(blocks, body.layers, strict=True)
    )
    return replace(
        made,
        embed=_scaled(made.embed, config.embedding_multiplier),
        blocks=blocks,
        head=_scaled(made.head, 1 / config.logits_scaling),
        residual=float(config.residual_multiplier),
    )


def _summed(first: Any, second: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: first(x) + second(x)


def _scaled(module: Any, factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x) * factor


_CENTRED = frozenset({"Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm"})
"""Norms whose stored weight is an offset from one."""
_QWEN = ("input_layernorm", "linear_attn", "self_attn", "post_attention_layernorm", "mlp")
NAMES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "BambaForCausalLM": (
        "model", "embed_tokens", "final_layernorm",
        ("input_layernorm", "mamba", "self_attn", "pre_ff_layernorm", "feed_forward"),
    ),
    "Mamba2ForCausalLM": ("backbone", "embeddings", "norm_f", ("norm", "mixer")),
    "GraniteMoeHybridForCausalLM": (
        "model", "embed_tokens", "norm",
        ("input_layernorm", "mamba", "self_attn", "post_attention_layernorm", "shared_mlp"),
    ),
    **dict.fromkeys(
        ("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"), ("model", "embed_tokens", "norm", _QWEN)
    ),
}  # fmt: skip
"""Attribute names by class: the body, and in the body the embedding, last norm, and each layer's norm, mixer, attention,
feed-forward norm and feed-forward."""
