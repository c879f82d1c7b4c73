"""Many pictures at once from an image model in training: what a drafter learns from, and sheets for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from specviz.models.hub.cache_dir import cache_folder
from specviz.models.image.image import LoadedImage
from specviz.models.image.image_shape import TextShape
from specviz.training.families import emoji
from specviz.training.families.image_codes import coded, drawable, encode, prompt_of, vq_model
from specviz.training.families.image_net import LANGUAGE, ImageNet, turned

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


class Cache:
    """Keys and values [batch, head, place, size] of every layer."""

    def __init__(self, net: ImageNet, batch: int, places: int, device: torch.device) -> None:
        shape = (net.shape.layers, 2, batch, net.shape.heads, places, net.size)
        self.layers = torch.zeros(shape, dtype=net.dtype, device=device)
        self.length = 0


def forward(net: ImageNet, x: Tensor, cache: Cache) -> Tensor:
    """New places [batch, place, hidden] after those in the cache, to final hidden states."""
    start, end = cache.length, cache.length + x.shape[1]
    turn = (net.cosine[start:end].to(x.device, x.dtype), net.sine[start:end].to(x.device, x.dtype))
    batch, places, width = x.shape
    for number in range(net.shape.layers):
        name = f"{LANGUAGE}layers.{number}."
        inside = F.rms_norm(x, (width,), eps=1e-6)
        parts = [F.linear(inside, net[f"{name}self_attn.{letter}_proj.weight"]) for letter in "qkv"]
        query, key, value = (part.view(batch, places, net.shape.heads, net.size).transpose(1, 2) for part in parts)
        states = cache.layers[number]
        states[0, :, :, start:end], states[1, :, :, start:end] = turned(key, *turn), value
        attention = attended(turned(query, *turn), states[0, :, :, :end], states[1, :, :, :end])
        x = x + F.linear(attention.transpose(1, 2).reshape(batch, places, width), net[f"{name}self_attn.o_proj.weight"])
        inside = F.rms_norm(x, (width,), eps=1e-6)
        gate, up = (
            F.linear(inside, net[f"{name}mlp.gate_proj.weight"]),
            F.linear(inside, net[f"{name}mlp.up_proj.weight"]),
        )
        x = x + F.linear(F.silu(gate) * up, net[f"{name}mlp.down_proj.weight"])
    cache.length = end
    return F.rms_norm(x, (width,), eps=1e-6)


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The last places [batch, head, place, size] among all. A single one is read in plain products on a processor: half of
    drawing's time went into torch's fused attention there."""
    places = query.shape[2]
    if query.is_cuda or places > 1:
        return F.scaled_dot_product_attention(query, key, value, is_causal=places > 1)
    return ((query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)).softmax(-1) @ value


def halved(net: ImageNet) -> ImageNet:
    """The same network with its weights in what the device multiplies fastest in, for drawing only."""
    return ImageNet({name: value.detach().to(net.dtype) for name, value in net.parameters.items()}, net.shape, net.dtype)


@torch.inference_mode()
def draw(
    net: ImageNet, rows: Sequence[tuple[Sequence[int], Sequence[int]]], cells: int, guidance: float, seed: int,
    temperature: float = 1.0, top_k: int = 0,
) -> Tensor:  # fmt: skip
    """Codes [picture, cell] for pairs of rows (with words, without), drawn with guidance. ``net`` is :func:`halved`."""
    device = next(iter(net.parameters.values())).device
    generator = torch.Generator(device).manual_seed(seed)
    prompts = torch.tensor([pair[0] for pair in rows] + [pair[1] for pair in rows], device=device)
    cache = Cache(net, len(prompts), prompts.shape[1] + cells, device)
    hidden = forward(net, net[LANGUAGE + "embed_tokens.weight"][prompts], cache)[:, -1:]
    columns = []
    for _ in range(cells):
        with_words, without = net.logits(hidden)[:, 0].float().chunk(2)
        logits = without + guidance * (with_words - without)
        if top_k:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], float("-inf"))
        if temperature:
            codes = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        else:
            codes = logits.argmax(-1, keepdim=True)
        columns.append(codes)
        hidden = forward(net, net.embedded(torch.cat((codes, codes))), cache)
    return torch.cat(columns, dim=1)


def sheet(loaded: LoadedImage, codes: Tensor, path: Path, columns: int = 16, scale: int = 1) -> None:
    """One picture of many [picture, cell], written to ``path``."""
    with torch.inference_mode():
        parts = [loaded.model.decode_image_tokens(part.to(loaded.device)) for part in codes.split(32)]
    save_sheet(torch.cat(parts).float().permute(0, 3, 1, 2), path, columns, scale)


def save_sheet(pixels: Tensor, path: Path, columns: int = 16, scale: int = 1) -> None:
    """Pixels [picture, rgb, row, column] from -1 to 1 side by side."""
    images = ((pixels.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    missing = -len(images) % columns
    images = np.concatenate((images, np.full((missing, *images.shape[1:]), 255, np.uint8)))
    count, height, width, _ = images.shape
    grid = images.reshape(count // columns, columns, height, width, 3).transpose(0, 2, 1, 3, 4)
    picture = Image.fromarray(grid.reshape(count // columns * height, columns * width, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST).save(path)
