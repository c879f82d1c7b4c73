"""``train scenes_vlm``: a small vision-language model, trained first on vision with dense labels, then on vision and language.

Dense labels give the content of every patch. Visual tokens thus have meaning before language training, which saves most of the
time. The network is transformers' SmolVLM. A mask lets packed conversations share a prefix without attending to each other.
Answers are graded word for word.
Axis names: ``scene``, ``token``, ``question``, ``visual``, ``row`` (a question about a picture), ``hidden``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMVisionConfig,
)

from specviz.models.device import choose_device
from specviz.models.hub.packed_model import write_model
from specviz.models.text.text import tokenizer_hash
from specviz.models.vision.scenes import END, SPECIAL, USER
from specviz.training import decoding, driver, parallel
from specviz.training.decoding import Request
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families.scenes import COMBINATIONS, FRESH, UNSEEN_DRAWINGS, Scene, draw, held_out
from specviz.training.families.scenes_words import (
    HEADS,
    IGNORED,
    KINDS,
    Batch,
    Exchange,
    Writer,
    batch_of,
    batches,
    exchanges,
    train_tokenizer,
)

PATCH_WEIGHT = {"kind": 1.0, "colour": 0.5, "size": 0.5, "region": 0.5}
_EMPTY = 0.15
"""Weight of an empty patch, relative to a patch with content."""
LONG, SHORT, READ = 0.25, 0.5, 0.75
"""Weights of descriptions, of answers about pictures and of answers from text.

The wording of descriptions is mostly random, so their unlearnable loss must not dominate.
"""
_NAMED = 0.5
"""Weight of naming the content of a patch with the language model's head, relative to the dense labels."""


def new_model(shape: Mapping[str, Any], vocab: int) -> Learner:
    """Return a model with random weights and layers that add zero. ``shape``: sizes by part of the model."""
    text = LlamaConfig(vocab_size=vocab, tie_word_embeddings=True, bos_token_id=None, **shape["text"])
    vision = SmolVLMVisionConfig(**shape["vision"])
    torch.manual_seed(0)
    config = SmolVLMConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **shape["model"])
    learner = Learner(SmolVLMForConditionalGeneration(config))
    with torch.no_grad():
        for layer in learner.model.model.text_model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for layer in learner.model.model.vision_model.encoder.layers:
            layer.self_attn.out_proj.weight.zero_()
            layer.mlp.fc2.weight.zero_()
    return learner


class Learner(nn.Module):
    """A ``model`` with heads for dense labels, which are not shipped. ``grid``: side of the square of visual tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, vision, width = model, model.config.vision_config, model.config.text_config.hidden_size
        self.grid = int(vision.image_size // vision.patch_size // model.config.scale_factor)
        self.patch_heads = nn.ModuleDict({name: nn.Linear(width, many) for name, many in HEADS.items()})
        self.names: Tensor | None = None

    def learn_names(self, tokenizer: Any) -> None:
        """Add a term to the patch loss: prediction of the name of a patch's content, for names of a single token.

        Visual tokens and names then share a representation before language training, so attention can match them.
        """
        spelled = [tokenizer.backend_tokenizer.encode(f" {kind}", add_special_tokens=False).ids for kind in KINDS]
        single = [ids[0] if len(ids) == 1 else IGNORED for ids in spelled]
        self.names = torch.tensor([IGNORED, *single], device=self.model.device)

    def trained_parameters(self, language: bool) -> dict[str, nn.Parameter]:
        """Return parameters by name. ``language``: whether to include the language model."""
        return {name: value for name, value in self.named_parameters() if language or ".text_model." not in name}

    def visual_tokens(self, pixels: Tensor) -> Tensor:
        """Return the visual tokens [scene, visual, hidden] of ``pixels``, uint8 [scene, row, column, 3]."""
        images = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
        features = self.model.model.get_image_features(images[:, None], return_dict=True).pooler_output
        return torch.stack(list(features))

    def tokens_of(self, chosen: Sequence[Scene]) -> Tensor:
        """Return the visual tokens [scene, visual, hidden] of ``chosen`` scenes."""
        return self.visual_tokens(torch.from_numpy(np.stack([draw(scene) for scene in chosen])).to(self.model.device))

    def patch_loss(self, visual: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the cross-entropies of the dense labels, each a weighted mean over patches."""
        weight = torch.where(batch.patches["kind"] > 0, 1.0, _EMPTY).flatten()
        total = torch.zeros((), device=visual.device)
        for name, head in self.patch_heads.items():
            lost = F.cross_entropy(head(visual).float().flatten(0, 1), batch.patches[name].flatten(), reduction="none")
            total = total + PATCH_WEIGHT[name] * (lost * weight).sum() / weight.sum()
        if self.names is None:
            return total
        # The head predicts the name from a visual token, as if that were a hidden state of the last layer.
        words = self.names[batch.patches["kind"]]
        named = words != IGNORED
        states = self.model.model.text_model.norm(visual[named])
        return total + _NAMED * F.cross_entropy(self.model.lm_head(states).float(), words[named])

    def word_loss(self, visual: Tensor, batch: Batch) -> Tensor:
        """Return the weighted sum of the cross-entropies of descriptions, of short answers, and of answers without a picture.

        Each is a mean over tokens, since a description is as long as ten answers.
        """
        hidden = self.read(visual, batch)
        cut = batch.long.shape[1]
        total = LONG * self._cross_entropy(hidden[:, :cut], batch.long_labels)
        total = total + SHORT * self._cross_entropy(hidden[:, cut:], batch.short_labels.flatten(1))
        if batch.read is None or batch.read_labels is None:
            return total
        return total + READ * self._cross_entropy(self.read_pages(batch.read), batch.read_labels)

    def read_pages(self, pages: Tensor) -> Tensor:
        """Return the last hidden states [page, token, hidden] of ``pages`` [page, token], conversations without a picture."""
        text = self.model.model.text_model
        return text(inputs_embeds=text.embed_tokens(pages), use_cache=False).last_hidden_state

    def _cross_entropy(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy over tokens with a label; 0 if there are none."""
        chosen = labels != IGNORED
        lost = F.cross_entropy(self.model.lm_head(hidden[chosen]).float(), labels[chosen], reduction="sum")
        return lost / chosen.sum().clamp_min(1)

    def read(self, visual: Tensor, batch: Batch) -> Tensor:
        """Return the last hidden states [scene, token, hidden] after the prefix: description, then questions."""
        scenes, questions, longest = batch.short.shape
        embed = self.model.model.text_model.embed_tokens
        user = embed(torch.full((scenes, 1), SPECIAL.index(USER), device=visual.device))
        rows = torch.cat((user, visual.to(user.dtype), embed(batch.long), embed(batch.short.flatten(1))), dim=1)
        start = 1 + visual.shape[1]
        parts = torch.tensor([start, batch.long.shape[1], *[longest] * questions])
        places = torch.cat([torch.arange(int(part)) + (start if number else 0) for number, part in enumerate(parts)])
        which = torch.arange(len(parts)).repeat_interleave(parts)
        mask = ((which == which[:, None]) | (which == 0)).tril()[None, None]  # each sees the prefix and itself
        passed = self.model.model.text_model(
            inputs_embeds=rows, position_ids=places[None].expand(scenes, -1).to(visual.device), use_cache=False,
            attention_mask=mask.to(visual.device),
        )  # fmt: skip
        return passed.last_hidden_state[:, start:]


_ROWS = 96
_ANSWER = 96


def answers(
    learner: Learner, visual: Tensor, questions: Sequence[Sequence[int]], writer: Writer, longest: int,
    temperature: float = 0.0, generator: torch.Generator | None = None,
) -> list[tuple[int, ...]]:  # fmt: skip
    """Return answers of at most ``longest`` tokens, including the end token.

    ``visual`` [row, visual, hidden]: picture of each question.
    """
    user = learner.model.get_input_embeddings().weight[writer.user][None].detach()
    requests = [
        Request((*question, writer.assistant), temperature, longest, before=torch.cat((user, picture.to(user.dtype))))
        for question, picture in zip(questions, visual, strict=True)
    ]
    return decoding.answers(learner.model, writer.end, (), requests, _ROWS, generator)


class GradedAnswer(NamedTuple):
    """A question and the model's reply. ``right``: whether the last sentence of the reply is correct word for word."""

    exchange: Exchange
    reply: str

    @property
    def right(self) -> bool:
        reply, truth = (" ".join(text.lower().split()) for text in (self.reply, self.exchange.answer))
        return re.split("[.?] ", reply.rstrip("."))[-1] + "." == truth


def ask(learner: Learner, tokenizer: Any, kind: str, numbers: Sequence[int], questions: int) -> list[GradedAnswer]:
    """Return graded answers to questions about the held-out scenes ``numbers`` of a kind."""
    writer, chosen = Writer(tokenizer), [held_out(kind, number) for number in numbers]
    asked = [(place, exchange) for place, scene in enumerate(chosen) for exchange in exchanges(scene, questions)[1:]]
    with torch.no_grad():
        visual = learner.tokens_of(chosen)[[place for place, _ in asked]]
    ids = [writer.ids(exchange.question) for _, exchange in asked]
    rows = answers(learner, visual, ids, writer, _ANSWER)
    texts = [tokenizer.decode(row, clean_up_tokenization_spaces=False).removesuffix(END) for row in rows]
    return [GradedAnswer(exchange, text) for (_, exchange), text in zip(asked, texts, strict=True)]


def metrics(answered: Sequence[GradedAnswer]) -> dict[str, float]:
    """Return the share of right answers, by kind of question and overall."""
    kinds = sorted({one.exchange.kind for one in answered})
    found = {kind: float(np.mean([one.right for one in answered if one.exchange.kind == kind])) for kind in kinds}
    return {**found, "questions": float(np.mean([one.right for one in answered]))}


SPEAKING = "speaking"
MEASURED = 80
QUESTIONS = 6
"""Questions per scene."""


TEACHER, SLOWER = 0.25, 0.25
"""Second stage: weight of the dense labels, and factor on the learning rate of vision, since gradients from language are mostly
noise at first."""
READING = 4
"""Text-only pages about other scenes, per scene."""


class ScenesTraining(TrainState):
    """Training on scenes: first vision, then vision and language."""

    unit = "scenes"
    prefix = "model."
    second = (SPEAKING, 0.25)

    def __init__(self, learner: Learner, tokenizer: Any, settings: Schedule) -> None:
        self.learner, self.tokenizer = learner, tokenizer
        super().__init__(settings, learner.trained_parameters(False), weights=dict(learner.named_parameters()))
        self.part = 1  # each ``Batch`` is one pass

    def shaped(self, name: str, value: Tensor) -> Tensor:
        """Give embedding tables three axes, so that Adam updates them, and make the patch embedding a matrix."""
        if "embedding.weight" in name or "embed_tokens" in name:
            return value[None] if value.ndim == 2 else value.flatten(1)
        return value

    def begin(self) -> None:
        """Start a stream of new scenes. Seeds continue from the number of scenes seen, ``progress.tokens``."""
        settings = self.settings
        size, questions, reading = (settings.later, QUESTIONS, READING) if self.in_second_stage else (settings.batch, 1, 0)
        first, part = self.progress.tokens, settings.part or -(-settings.later // settings.workers)
        self.stream = batches(Writer(self.tokenizer), self.learner.grid, size, part, questions, first, reading)

    def enter(self, stage: str) -> None:
        """Begin the stage with a new optimizer and new batches."""
        super().enter(stage)
        leaves = self.learner.trained_parameters(self.in_second_stage)
        self.move(leaves, rate_factors={name: SLOWER for name in leaves if ".text_model." not in name})
        self.begin()

    def learn_from(self, parts: list[Batch]) -> Step:
        """Return loss and gradients, averaged over ``parts``."""

        def loss(some: Sequence[Batch]) -> Tensor:
            part = some[0].to(self.device)
            visual = self.learner.visual_tokens(part.pixels)
            total = self.learner.patch_loss(visual, part)
            if self.in_second_stage:
                total = TEACHER * total + self.learner.word_loss(visual, part)
            return total / len(parts)

        return self.learn(parts, loss, sum(len(part.pixels) for part in parts))

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return the accuracy on non-empty patches of held-out scenes and, in the second stage, of answers."""
        learner, numbers = self.learner, range(self.settings.measured)
        scenes = [held_out(FRESH, number) for number in numbers]
        batch = batch_of(scenes, Writer(self.tokenizer), learner.grid, 1).to(self.device)
        visual, shows = learner.visual_tokens(batch.pixels), batch.patches["kind"] > 0
        right = {name: head(visual).argmax(-1) == batch.patches[name] for name, head in learner.patch_heads.items()}
        found = {f"patch_{name}": float(value[shows].float().mean()) for name, value in right.items()}
        if self.in_second_stage:
            with parallel.arithmetic(self.device):
                found |= metrics(ask(learner, self.tokenizer, FRESH, numbers, QUESTIONS))
        return found

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the accuracy of answers about each kind of held-out scenes."""
        kinds, numbers = (FRESH, COMBINATIONS, UNSEEN_DRAWINGS), range(1000, 1000 + MEASURED)
        return {kind: metrics(ask(self.learner, self.tokenizer, kind, numbers, QUESTIONS)) for kind in kinds}

    def save(self, path: Path, card: dict[str, str]) -> None:
        write_model(path, self.learner.model, self.tokenizer.backend_tokenizer, card)


def make(job: Job) -> None:
    """Train, measure on held-out scenes, and write ``assets/weights/scenes_vlm.safetensors``."""
    device = choose_device(job.device)
    settings, tokenizer = driver.settings_for(job, device), train_tokenizer()
    learner = new_model(job.recipe.shape, len(tokenizer)).to(device)
    learner.learn_names(tokenizer)
    state = ScenesTraining(learner, tokenizer, settings)
    data = "scenes from seeds; emoji art of Noto (Apache-2.0) and Twemoji (CC-BY 4.0)"
    driver.run(job, state, data, licence="Apache-2.0", tokenizer_hash=tokenizer_hash(tokenizer))
