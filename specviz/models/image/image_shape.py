"""Architecture of our image model in the terms of transformers' Janus: one place for training, loading and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class VqShape:
    """The picture tokenizer: codes of ``dim`` numbers, one per 4 x 4 pixels; channels by resolution."""

    codes: int = 512
    dim: int = 8
    channels: int = 32
    multiplier: tuple[int, ...] = (1, 1, 2)
    blocks: int = 1
    latent: int = 64


SHIPPED_VQ = VqShape()
"""The picture tokenizer that ships."""


@dataclass(frozen=True)
class TextShape:
    """The transformer: ``prompts`` is the size of the prompt vocabulary."""

    prompts: int = 2048
    width: int = 192
    inner: int = 512
    layers: int = 14
    heads: int = 3
    theta: float = 1000.0


def janus_config(vq: VqShape, text: TextShape, grid: int) -> dict[str, Any]:
    """Arguments of ``JanusConfig(**…)`` for ``grid`` x ``grid`` codes. The part that reads pictures is minimal."""
    patch = 2 ** (len(vq.multiplier) - 1)
    return {
        "text_config": _text(text),
        "vision_config": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "image_size": grid * patch,
            "patch_size": patch,
            "projection_dim": text.width,
            "num_image_tokens": grid * grid,
        },
        "vq_config": {
            "embed_dim": vq.dim,
            "num_embeddings": vq.codes,
            "latent_channels": vq.latent,
            "base_channels": vq.channels,
            "channel_multiplier": list(vq.multiplier),
            "num_res_blocks": vq.blocks,
            "num_patches": grid,
            "projection_dim": text.width,
            "image_token_embed_dim": text.width,
        },
        "image_token_id": 0,
    }


def _text(shape: TextShape) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": shape.prompts,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.width // shape.heads,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
