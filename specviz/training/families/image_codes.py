"""Emoji art as picture codes, and what one may ask for to get it: the data of every image model here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from specviz.drafters.networks.weights import read_weights
from specviz.models.hub.cache_dir import cache_folder, ensure_folder
from specviz.models.image.image import weights_of
from specviz.models.image.image_shape import SHIPPED_VQ, TextShape, janus_config
from specviz.models.image.prompts import SPECIAL, PromptRows, WordPrompts
from specviz.training.families import emoji

VOCABULARY = 2048
PREFIX = "model.vqmodel."
_GROUPS = (0, 3, 4)
_COLOURS = list(emoji.GROUNDS)


def vq_model() -> tuple[Any, str]:
    """The shipped picture tokenizer, float32, and its codebook's number."""
    tensors, card = read_weights(weights_of("image_vq"))
    net = JanusVQVAE(JanusVQVAEConfig(**janus_config(SHIPPED_VQ, TextShape(), emoji.SIDE // 4)["vq_config"]))
    net.load_state_dict({name.removeprefix(PREFIX): value for name, value in tensors.items()})
    weight = net.quantize.embedding.weight
    weight.data = F.normalize(weight.data, dim=-1)
    return net.eval().requires_grad_(False), card["codebook"]


@torch.inference_mode()
def encode(net: JanusVQVAE, pixels: Tensor) -> Tensor:
    """Pixels [picture, rgb, row, column] to codes [picture, place]."""
    latents = net.quant_conv(net.encoder(pixels))
    rows = F.normalize(latents.float(), dim=1).permute(0, 2, 3, 1).flatten(0, 2)
    return (rows @ net.quantize.embedding.weight.T).argmax(-1).view(len(pixels), -1)


@dataclass(frozen=True)
class Coded:
    """Every picture twice: on white, then on a colour of its own. ``codes`` is [picture, ground, place]."""

    concepts: tuple[emoji.Concept, ...]
    codes: np.ndarray
    codebook: str

    def part(self, held_out: bool) -> list[emoji.Concept]:
        """Concepts that image models learn to draw, or those kept out."""
        return [concept for concept in self.concepts if concept.held_out == held_out and drawable(concept)]


def drawable(concept: emoji.Concept) -> bool:
    """Whether this is a face, an animal, a plant or food."""
    return concept.group in _GROUPS


def ground_of(row: int) -> str:
    """The colour a picture stands on when not on white."""
    return _COLOURS[1 + (row * 7 + row // 3) % (len(_COLOURS) - 1)]


def coded(grid: int) -> Coded:
    """All drawable emoji as ``grid`` x ``grid`` codes of the shipped tokenizer; made once and kept in the cache folder."""
    art = emoji.load()
    net, number = vq_model()
    version = _encoder_digest(net)
    file = ensure_folder(cache_folder() / "emoji" / emoji.digest()) / f"codes-{grid}-{version}.npy"
    if not file.exists():
        grounds = emoji.GROUNDS
        rows = np.array(sorted(row for concept in art.concepts if drawable(concept) for row in concept.rows.values()))
        code_parts = []
        for part in np.array_split(rows, max(1, len(rows) // 32)):
            white = art.on(part, np.array([grounds["white"]] * len(part)))
            other = art.on(part, np.array([grounds[ground_of(int(row))] for row in part]))
            pixels = torch.from_numpy(np.stack((white, other), axis=1)).flatten(0, 1)
            shrunk = F.avg_pool2d(pixels, emoji.SIDE // 4 // grid) if grid * 4 < emoji.SIDE else pixels
            code_parts.append(encode(net, shrunk).view(len(part), 2, -1).numpy().astype(np.int16))
        codes = np.zeros((len(art.pictures), 2, grid * grid), np.int16)
        codes[rows] = np.concatenate(code_parts)
        np.save(file, codes)
    return Coded(art.concepts, np.load(file), number)


def _encoder_digest(net: JanusVQVAE) -> str:
    """Changes with what decides which codes a picture has; not with the decoder."""
    sums = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        if not name.startswith(("decoder", "post_quant")):
            sums.update(value.numpy().tobytes())
    return sums.hexdigest()[:12]


def word_prompts() -> WordPrompts:
    """Word pieces learned from the names and keywords of what may be learned."""
    art = emoji.load()
    texts = [f"{concept.label}, {style} style" for concept in art.part(held_out=False) for style in emoji.STYLES]
    texts += [
        f"{concept.label}, {' '.join(concept.tags)}, on {ground}"
        for concept in art.part(held_out=False)
        for ground in _COLOURS[1:2]
    ]
    texts += [f"on {ground}" for ground in _COLOURS] * 100
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return WordPrompts(json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":"), ensure_ascii=True))


def learned_names() -> list[str]:
    """What :func:`varied_prompt` may call each picture that is learned from, name and keywords; then styles and grounds."""
    names = [", ".join((concept.label, *concept.tags)) for concept in emoji.load().part(held_out=False) if drawable(concept)]
    return [*names, *(f"{style} style" for style in emoji.STYLES), *(f"on {ground}" for ground in _COLOURS[1:])]


def prompt_of(concept: emoji.Concept, style: str, ground: str = "white") -> str:
    """The plain way to ask for a picture."""
    return f"{concept.label}, {style} style" + ("" if ground == "white" else f", on {ground}")


def varied_prompt(concept: emoji.Concept, style: str, ground: str, generator: np.random.Generator) -> str:
    """One of many ways: with keywords more, or keywords alone, sometimes without the style."""
    draw = generator.random()
    words = [concept.label]
    if concept.tags and draw > 0.6:
        tags = list(generator.permutation(concept.tags)[: 1 + int(generator.integers(0, 3))])
        words = tags if draw > 0.9 and len(tags) > 1 else [*words, *tags]
    if generator.random() > 0.08:
        words.append(f"{style} style")
    if ground != "white":
        words.append(f"on {ground}")
    return ", ".join(words)


def misread(codes: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Codes [picture, place] of which up to ``most`` (a share drawn for each picture) are another picture's at that place.

    A thousand pictures are few: the first row of codes tells each from all others, and a model soon reads the rest off
    that instead of the prompt. What it then draws itself starts like none of them, and it is lost.
    """
    shape, device = codes.shape, codes.device
    share = most * torch.rand(len(codes), 1, generator=generator)
    wrong = (torch.rand(shape, generator=generator) < share).to(device)
    others = torch.randint(len(codes), shape, generator=generator).to(device)
    return torch.where(wrong, codes.gather(0, others), codes)


class Batches:
    """Prompts [picture, word] and codes [picture, place], drawn at random; one prompt in ten says nothing."""

    def __init__(self, data: Coded, prompts: WordPrompts, device: torch.device, seed: int = 2) -> None:
        self.data, self.prompts, self.device = data, prompts, device
        self.concepts = data.part(held_out=False)
        self.generator = np.random.default_rng(seed)
        self.waiting: list[tuple[int, str]] = []

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """The next ``count`` pictures: all are seen equally often."""
        with_words, without, codes = self.guided_batch(count)
        silent = torch.from_numpy(self.generator.random(count) < 0.1).to(self.device)
        return torch.where(silent[:, None], without, with_words), codes

    def guided_batch(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The next ``count`` pictures' prompts, as often those that say nothing, and codes, to draw with guidance."""
        while len(self.waiting) < count:
            pairs = [(place, style) for place in range(len(self.concepts)) for style in emoji.STYLES]
            order = self.generator.permutation(len(pairs))
            self.waiting = [pairs[number] for number in order] + self.waiting
        examples = [self._example(self.concepts[place], style) for place, style in (self.waiting.pop() for _ in range(count))]
        rows, codes = zip(*examples, strict=True)
        with_words = torch.tensor([row.conditional for row in rows], device=self.device)
        without = torch.tensor([row.unconditional for row in rows], device=self.device)
        return with_words, without, torch.tensor(np.stack(codes), device=self.device).long()

    def _example(self, concept: emoji.Concept, style: str) -> tuple[PromptRows, np.ndarray]:
        row = concept.rows[style]
        coloured = self.generator.random() < 0.15
        rows = self.prompts.rows(varied_prompt(concept, style, ground_of(row) if coloured else "white", self.generator))
        return rows, self.data.codes[row, int(coloured)]

    def kept_out(self, count: int) -> tuple[Tensor, Tensor]:
        """Held-out pictures on white under their plain prompts."""
        pairs = [(concept, style) for concept in self.data.part(held_out=True) for style in emoji.STYLES][:count]
        prompts = [self.prompts.rows(prompt_of(concept, style)).conditional for concept, style in pairs]
        codes = np.stack([self.data.codes[concept.rows[style], 0] for concept, style in pairs])
        return torch.tensor(prompts, device=self.device), torch.tensor(codes, device=self.device).long()
