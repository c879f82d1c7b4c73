"""Mamba-2 layers of a transformers model by role: the one place that knows the classes' own names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specviz.errors import ModelUnavailable


@dataclass(frozen=True)
class Block:
    """One layer: a mixer or attention behind ``norm``, then a feed-forward behind its own norm where there is one."""

    norm: Any
    mixer: Any = None
    attention: Any = None
    feed_norm: Any = None
    feed: Any = None


@dataclass(frozen=True)
class Anatomy:
    """``rotary`` is None where no layer attends. ``wide`` keeps the residual stream in float32 at least."""

    embed: Any
    blocks: tuple[Block, ...]
    norm: Any
    head: Any
    rotary: Any = None
    wide: bool = False


def can_branch(model: Any) -> bool:
    """Whether this is a class whose recurrent layers are all Mamba-2, read below."""
    return type(model).__name__ in _READERS


def anatomy(model: Any) -> Anatomy:
    """The parts of ``model``. Raises ModelUnavailable for a class whose recurrence is another one."""
    parts_of = _READERS.get(type(model).__name__)
    if parts_of is None:
        raise ModelUnavailable(
            f"{type(model).__name__} has recurrent layers, and only Mamba-2's can hold the branches of a draft tree here: "
            f"choose a target of the classes {', '.join(_READERS)}, or one whose layers all attend."
        )
    return parts_of(model)


def _bamba(model: Any) -> Anatomy:
    body = model.model
    blocks = tuple(
        Block(
            layer.input_layernorm,
            mixer=getattr(layer, "mamba", None),
            attention=getattr(layer, "self_attn", None),
            feed_norm=layer.pre_ff_layernorm,
            feed=layer.feed_forward,
        )
        for layer in body.layers
    )
    return Anatomy(body.embed_tokens, blocks, body.final_layernorm, model.lm_head, body.rotary_emb)


def _mamba2(model: Any) -> Anatomy:
    body = model.backbone
    blocks = tuple(Block(layer.norm, mixer=layer.mixer) for layer in body.layers)
    return Anatomy(body.embeddings, blocks, body.norm_f, model.lm_head, wide=bool(model.config.residual_in_fp32))


_READERS = {"BambaForCausalLM": _bamba, "Mamba2ForCausalLM": _mamba2}
