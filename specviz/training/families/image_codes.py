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

from specviz.drafting.networks.weights import read_weights
from specviz.models.hub.cache_dir import cache_folder, ensure_folder
from specviz.models.image.image import weights_of
from specviz.models.image.image_shape import SHIPPED_VQ, TextShape, janus_config
from specviz.models.image.prompts import SPECIAL, WordPrompts
from specviz.training.families import emoji

VOCABULARY = 2048
PREFIX = "model.vqmodel."
_GROUPS = (0, 3, 4)
_COLOURS = list(emoji.GROUNDS)


def fresh_vq() -> Any:
    """The picture tokenizer, drawn anew."""
    return JanusVQVAE(JanusVQVAEConfig(**janus_config(SHIPPED_VQ, TextShape(), emoji.SIDE // 4)["vq_config"]))


def vq_model() -> tuple[Any, str]:
    """The shipped picture tokenizer, float32, and its codebook's number."""
    tensors, card = read_weights(weights_of("image_vq"))
    net = fresh_vq()
    net.load_state_dict({name.removeprefix(PREFIX): value for name, value in tensors.items()})
    weight = net.quantize.embedding.weight
    weight.data = F.normalize(weight.data, dim=-1)
    return net.eval().requires_grad_(False), card["codebook"]


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


@torch.inference_mode()
def coded(grid: int) -> Coded:
    """All drawable emoji as ``grid`` x ``grid`` codes of the shipped tokenizer; made once and kept in the cache folder."""
    art, (net, number), sums = emoji.load(), vq_model(), hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        if not name.startswith(("decoder", "post_quant")):  # what decides which codes a picture has
            sums.update(value.numpy().tobytes())
    folder = ensure_folder(cache_folder() / "emoji" / emoji.digest())
    file = folder / f"codes-{grid}-{sums.hexdigest()[:12]}.npy"
    if not file.exists():
        rows = np.array(sorted(row for concept in art.concepts if drawable(concept) for row in concept.rows.values()))
        codes = np.zeros((len(art.pictures), 2, grid * grid), np.int16)
        for part in np.array_split(rows, max(1, len(rows) // 32)):
            grounds = [emoji.GROUNDS[ground] for row in part for ground in ("white", ground_of(int(row)))]
            pixels = torch.from_numpy(art.on(part.repeat(2), np.array(grounds)))
            pixels = F.avg_pool2d(pixels, emoji.SIDE // 4 // grid)
            vectors = F.normalize(net.quant_conv(net.encoder(pixels)).float(), dim=1).permute(0, 2, 3, 1)
            nearest = (vectors @ net.quantize.embedding.weight.T).argmax(-1)
            codes[part] = nearest.view(len(part), 2, -1).numpy()
        np.save(file, codes)
    return Coded(art.concepts, np.load(file), number)


def word_prompts() -> WordPrompts:
    """Word pieces learned from the names and keywords of what may be learned."""
    concepts = emoji.load().part(held_out=False)
    texts = [f"{concept.label}, {style} style" for concept in concepts for style in emoji.STYLES]
    texts += [f"{concept.label}, {' '.join(concept.tags)}, on {_COLOURS[1]}" for concept in concepts]
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


def prompt_of(concept: emoji.Concept, style: str) -> str:
    """The plain way to ask for a picture on white."""
    return f"{concept.label}, {style} style"


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
        self.concepts, self.generator = data.part(held_out=False), np.random.default_rng(seed)
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
            self.waiting = [pairs[number] for number in self.generator.permutation(len(pairs))] + self.waiting
        asked = list[tuple[str, int, int]]()
        for place, style in (self.waiting.pop() for _ in range(count)):
            concept, coloured = self.concepts[place], self.generator.random() < 0.15
            row = concept.rows[style]
            prompt = varied_prompt(concept, style, ground_of(row) if coloured else "white", self.generator)
            asked.append((prompt, row, int(coloured)))
        return self._tensors(asked)

    def kept_out(self, count: int) -> tuple[Tensor, Tensor]:
        """Held-out pictures on white under their plain prompts."""
        pairs = [(concept, style) for concept in self.data.part(held_out=True) for style in emoji.STYLES][:count]
        with_words, _, codes = self._tensors([(prompt_of(concept, style), concept.rows[style], 0) for concept, style in pairs])
        return with_words, codes

    def _tensors(self, asked: list[tuple[str, int, int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Prompts with words, as many empty ones, and codes of (prompt, row, ground)."""
        rows = [self.prompts.rows(prompt) for prompt, _, _ in asked]
        with_words = torch.tensor([row.conditional for row in rows], device=self.device)
        without = torch.tensor([row.unconditional for row in rows], device=self.device)
        codes = np.stack([self.data.codes[row, ground] for _, row, ground in asked])
        return with_words, without, torch.tensor(codes, device=self.device).long()
