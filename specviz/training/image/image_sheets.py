"""Sheets for people to look at when an image recipe is done: reconstructions, and pictures of learned and unknown prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specviz.models.hub.cache_dir import cache_folder
from specviz.models.image.image import LoadedImage
from specviz.models.image.image_shape import TextShape
from specviz.training.image import emoji
from specviz.training.image.image_codes import coded, drawable, encode, prompt_of, vq_model
from specviz.training.image.image_net import ImageNet
from specviz.training.image.image_samples import draw, halved, save_sheet, sheet

COUNT = 64


def folder() -> Path:
    """Where sheets go."""
    return cache_folder() / "training" / "sheets"


def reconstructions(count: int = 45, across: int = 9) -> Path:
    """Held-out emoji above what their codes give back, ``across`` a row, in whole rows."""
    art = emoji.load()
    net, _ = vq_model()
    concepts = [concept for concept in art.part(held_out=True) if drawable(concept)]
    rows = [concept.rows[emoji.STYLES[place % 3]] for place, concept in enumerate(concepts)]
    rows = rows[: min(count, len(rows)) // across * across]
    grounds = list(emoji.GROUNDS.values())
    pixels = torch.from_numpy(art.on(rows, np.array([grounds[place % 4 * (place % 2)] for place in range(len(rows))])))
    with torch.inference_mode():
        drawn = torch.cat([net.decode(encode(net, part)) for part in pixels.split(16)])
    lines = [part for pair in zip(pixels.split(across), drawn.split(across), strict=True) for part in pair]
    path = folder() / "image_vq.png"
    save_sheet(torch.cat(lines), path, columns=across, scale=2)
    return path


def network(loaded: LoadedImage) -> ImageNet:
    """The loaded model as training runs it."""
    text = loaded.model.config.text_config
    theta = float(text.rope_parameters["rope_theta"])
    shape = TextShape(
        text.vocab_size,
        text.hidden_size,
        text.intermediate_size,
        text.num_hidden_layers,
        text.num_attention_heads,
        theta,
    )
    return ImageNet({name: value.detach() for name, value in loaded.model.named_parameters()}, shape)


def sheet_prompts(loaded: LoadedImage, held_out: bool, count: int = COUNT) -> list[str]:
    """Plain prompts of concepts spread over all groups, the styles in turn."""
    concepts = coded(loaded.grid).part(held_out)
    chosen = [concepts[place] for place in np.linspace(0, len(concepts) - 1, min(count, len(concepts))).astype(int)]
    turns = [prompt_of(concept, emoji.STYLES[(place + turn) % 3]) for turn in range(3) for place, concept in enumerate(chosen)]
    return turns[:count]


def contact(
    loaded: LoadedImage, held_out: bool, guidance: float | None = None, seed: int = 0, top_k: int = 0
) -> tuple[Path, Tensor]:
    """Pictures of 64 prompts, eight a row, in the order of :func:`sheet_prompts`; also their codes [picture, cell]."""
    pairs = [loaded.prompts.rows(prompt) for prompt in sheet_prompts(loaded, held_out)]
    rows = [(prompt_rows.conditional, prompt_rows.unconditional) for prompt_rows in pairs]
    strength = loaded.guidance if guidance is None else guidance
    codes = draw(halved(network(loaded)), rows, loaded.cells, strength, seed, top_k=top_k)
    path = folder() / f"{loaded.name}-{'held-out' if held_out else 'learned'}.png"
    sheet(loaded, codes, path, columns=16, scale=max(1, 128 // (loaded.grid * 4)) // 2 or 1)
    return path, codes
