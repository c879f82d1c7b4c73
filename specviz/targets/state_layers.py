"""Layers, by role, of transformers models with recurrent mixers: the only module with the classes' attribute names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specviz.errors import ModelUnavailable


@dataclass(frozen=True)
class Block:
    """One layer: ``norm``, then a mixer or attention; then, if present, a feed-forward after its own norm."""

    norm: Any
    mixer: Any = None
    attention: Any = None
    feed_norm: Any = None
    feed: Any = None


@dataclass(frozen=True)
class Anatomy:
    """Parts of a model. ``rotary`` is None if no layer uses rotary positions. ``wide`` keeps the residual stream in float32 at
    least. ``residual`` scales the output of every mixer, attention and feed-forward before it is added."""

    embed: Any
    blocks: tuple[Block, ...]
    norm: Any
    head: Any
    rotary: Any = None
    wide: bool = False
    residual: float = 1.0


@dataclass(frozen=True)
class Scale:
    """An RMS norm's weight [hidden], in the dtype of the multiplication, and its epsilon."""

    weight: Tensor
    eps: float


def scale_of(norm: Any) -> Scale:
    """Return a norm module's scale; a weight stored as an offset from one is converted in float32 at least, as in its class."""
    if type(norm).__name__ in _CENTRED:
        return Scale(1 + norm.weight.detach().to(torch.promote_types(norm.weight.dtype, torch.float32)), norm.eps)
    return Scale(norm.weight, norm.variance_epsilon)


def can_branch(model: Any) -> bool:
    """Whether this model has recurrent layers and its class is supported here."""
    parts_of = _READERS.get(type(model).__name__)
    return parts_of is not None and any(block.mixer is not None for block in parts_of(model).blocks)


def anatomy(model: Any) -> Anatomy:
    """Return the parts of ``model``. Raises ModelUnavailable for an unsupported class."""
    parts_of = _READERS.get(type(model).__name__)
    if parts_of is None:
        raise ModelUnavailable(
            f"{type(model).__name__} has recurrent layers, and only Mamba-2's and the gated delta rule's can hold the branches "
            f"of a draft tree here: choose a target of the classes {', '.join(_READERS)}, or one whose layers all attend."
        )
    return parts_of(model)


def _blocks(layers: Any, *names: str) -> tuple[Block, ...]:
    """Return the layers' parts, by the names of norm, mixer, attention, the feed-forward's norm and the feed-forward."""
    return tuple(Block(*(getattr(layer, name, None) for name in names)) for layer in layers)


def _bamba(model: Any) -> Anatomy:
    body = model.model
    blocks = _blocks(body.layers, "input_layernorm", "mamba", "self_attn", "pre_ff_layernorm", "feed_forward")
    return Anatomy(body.embed_tokens, blocks, body.final_layernorm, model.lm_head, body.rotary_emb)


def _mamba2(model: Any) -> Anatomy:
    body = model.backbone
    blocks = _blocks(body.layers, "norm", "mixer")
    return Anatomy(body.embeddings, blocks, body.norm_f, model.lm_head, wide=bool(model.config.residual_in_fp32))


def _granite(model: Any) -> Anatomy:
    """Granite 4.0 H: four multipliers, a shared feed-forward beside any experts, attention without positions."""
    body, config = model.model, model.config
    blocks = _blocks(body.layers, "input_layernorm", "mamba", "self_attn", "post_attention_layernorm", "shared_mlp")
    blocks = tuple(
        replace(block, feed=_Both(layer.block_sparse_moe, block.feed)) if layer.has_experts else block
        for block, layer in zip(blocks, body.layers, strict=True)
    )
    embed = _Times(body.embed_tokens, config.embedding_multiplier)
    head = _Times(model.lm_head, 1 / config.logits_scaling)
    return Anatomy(embed, blocks, body.norm, head, body.rotary_emb, residual=float(config.residual_multiplier))


def _qwen(model: Any) -> Anatomy:
    """Qwen3-Next and Qwen3.5, dense or with experts: the gated delta rule in three layers of four."""
    body = model.model
    blocks = _blocks(body.layers, "input_layernorm", "linear_attn", "self_attn", "post_attention_layernorm", "mlp")
    return Anatomy(body.embed_tokens, blocks, body.norm, model.lm_head, body.rotary_emb)


@dataclass(frozen=True)
class _Both:
    """Sum of two feed-forwards."""

    first: Any
    second: Any

    def __call__(self, x: Tensor) -> Tensor:
        both: Tensor = self.first(x) + self.second(x)
        return both


@dataclass(frozen=True)
class _Times:
    """A module's output multiplied by ``factor``."""

    module: Any
    factor: float

    def __call__(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.module(x) * self.factor
        return scaled


_CENTRED = frozenset({"Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm"})
"""Norms whose stored weight is an offset from one."""
_READERS = {
    "BambaForCausalLM": _bamba,
    "Mamba2ForCausalLM": _mamba2,
    "GraniteMoeHybridForCausalLM": _granite,
    "Qwen3NextForCausalLM": _qwen,
    "Qwen3_5ForCausalLM": _qwen,
    "Qwen3_5MoeForCausalLM": _qwen,
}
