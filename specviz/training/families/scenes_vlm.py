"""``train scenes_vlm``: a small vision-language model, trained first on vision with dense labels, then on vision and language.

Dense labels give the content of every patch. Visual tokens thus have meaning before language training, which saves most of the
time. The network is transformers' SmolVLM. A mask lets packed conversations share a prefix without attending to each other.
Answers are graded word for word.
Axis names: ``scene``, ``token``, ``question``, ``visual``, ``row`` (a question about a picture), ``hidden``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import (
    LlamaConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMVisionConfig,
)

from specviz.models.device import choose_device, cores
from specviz.models.hub.packed_model import named, shipped_file, write_model
from specviz.models.text.text import tokenizer_hash
from specviz.models.vision.scenes import END, SPECIAL, USER, admits, load
from specviz.training import decoding, driver, parallel
from specviz.training.decoding import Request
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families import scenes
from specviz.training.families.scenes_render import Renderer
from specviz.training.families.scenes_words import (
    HEADS,
    IGNORED,
    KINDS,
    LESSONS,
    Batch,
    Exchange,
    Writer,
    exchanges,
    padded,
    pages,
    patches_of,
    train_tokenizer,
)
from specviz.training.registry import WEIGHTS

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

    def tokens_of(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """Return the visual tokens [picture, visual, hidden] of ``pictures``, uint8 [row, column, 3] each."""
        return self.visual_tokens(torch.from_numpy(np.stack(pictures)).to(self.model.device))

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
        lost = F.cross_entropy(self.model.lm_head(states).float(), words[named], reduction="sum")
        return total + _NAMED * lost / named.sum().clamp_min(1)

    def word_loss(self, visual: Tensor, batch: Batch) -> Tensor:
        """Return the weighted sum of the cross-entropies of descriptions, of short answers, and of answers without a picture.

        Each is a mean over tokens, since a description is as long as ten answers.
        """
        hidden = self.read(visual, batch)
        cut = batch.long.shape[1]
        total = LONG * self._cross_entropy(hidden[:, :cut], batch.long_labels)
        total = total + SHORT * self._cross_entropy(hidden[:, cut:], batch.short_labels.flatten(1))
        if not len(batch.read):
            return total
        text = self.model.model.text_model
        hidden = text(inputs_embeds=text.embed_tokens(batch.read), use_cache=False).last_hidden_state
        return total + READ * self._cross_entropy(hidden, batch.read_labels)

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


def graded(learner: Learner, tokenizer: Any, asked: Sequence[Exchange], visual: Tensor) -> list[GradedAnswer]:
    """Return graded answers to the questions ``asked``; ``visual`` as in :func:`answers`."""
    writer = Writer(tokenizer)
    rows = answers(learner, visual, [writer.ids(exchange.question) for exchange in asked], writer, _ANSWER)
    texts = [tokenizer.decode(row, clean_up_tokenization_spaces=False).removesuffix(END) for row in rows]
    return [GradedAnswer(exchange, text) for exchange, text in zip(asked, texts, strict=True)]


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
READING, READ_ON = 4, 1.0
"""Text-only pages about other scenes, per scene: for a new model, and for one that can read and is not to forget it."""
DATA = "scenes from seeds; emoji art of Noto (Apache-2.0), Twemoji (CC-BY 4.0) and Fluent Emoji (MIT)"


Arrays = dict[str, Any]
"""Scenes as arrays: fields of :class:`Batch` by name, and ``paint``, with scenes stacked."""


@dataclass(eq=False)
class Lessons(IterableDataset[list[Arrays]]):
    """Endless updates of ``size`` scenes in parts of ``part`` scenes of similar length, from seed ``start`` on.

    ``questions``: about each scene. ``reading``: text-only pages about other scenes, per scene. Worker processes share the seeds;
    numpy arrays travel between them without file descriptors.
    """

    writer: Writer
    grid: int
    size: int
    part: int
    questions: int
    reading: float
    start: int

    def __iter__(self) -> Iterator[list[Arrays]]:
        worker = get_worker_info()
        for update in itertools.count(worker.id if worker else 0, worker.num_workers if worker else 1):
            first = self.start + update * self.size
            # Sorted by the number of things before the parts are cut, which saves padding.
            seeds = sorted(range(first, first + self.size), key=lambda seed: len(scenes.compose(seed)[0].things))
            yield [self.arrays(seeds[place : place + self.part]) for place in range(0, self.size, self.part)]

    def arrays(self, seeds: Sequence[int]) -> Arrays:
        """Return the scenes of ``seeds``."""
        made, writer, questions = [scenes.compose(seed) for seed in seeds], self.writer, self.questions
        rows, empty = [writer.conversations(exchanges(scene, questions, LESSONS)) for scene, _ in made], ([writer.end], [IGNORED])
        long, long_labels = padded([row[0] for row in rows], writer.end)
        asked = padded([part for row in rows for part in (row[1:] + [empty] * questions)[:questions]], writer.end)
        short, short_labels = (part.view(len(made), questions, -1) for part in asked)
        others = [scenes.READ_FROM + READING * seed + place for place in range(READING) for seed in seeds]
        others = others[: int(self.reading * len(seeds))]
        unseen = [scene for scene, _ in map(scenes.compose, others) if scene.things]
        read, read_labels = pages(unseen, writer, questions) if unseen else (long[:0], long[:0])
        words = {
            "long": long, "long_labels": long_labels, "short": short, "short_labels": short_labels, "read": read,
            "read_labels": read_labels,
        }  # fmt: skip
        patches = [patches_of(scene, self.grid) for scene, _ in made]
        return {
            **{name: value.numpy().astype(np.int16) for name, value in words.items()},
            "patches": {name: np.stack([one[name] for one in patches]) for name in HEADS},
            "paint": scenes.stacked([paint for _, paint in made]),
        }


def batch_of(arrays: Arrays, renderer: Renderer) -> Batch:
    """Return scenes as a batch on the renderer's device, with the pictures drawn."""
    put = lambda value: torch.from_numpy(value).to(renderer.device)  # noqa: E731
    pixels = renderer.draw(arrays["paint"])
    words = {name: put(value).long() for name, value in arrays.items() if isinstance(value, np.ndarray)}
    return Batch(pixels, {name: put(value) for name, value in arrays["patches"].items()}, **words)


class ScenesTraining(TrainState):
    """Training on scenes: first vision, then vision and language. Worker processes compose, the device draws.

    ``shape``: of the recipe. ``alone``: share of the time on vision alone. ``kept``: share of the first weights in those stored,
    since the mean of two trainings' weights recognises more than either.
    """

    unit = "scenes"
    prefix = "model."
    sources = {"data": DATA}
    """Without the weights that training starts from: a checkpoint holds all weights, and the recipe replaces that file."""
    second = (SPEAKING, 0.62)

    def __init__(self, learner: Learner, tokenizer: Any, settings: Schedule, shape: Mapping[str, Any]) -> None:
        self.learner, self.tokenizer = learner, tokenizer
        self.reading, self.kept = READ_ON if "start" in shape else READING, shape.get("kept", 0.0)
        self.second = (SPEAKING, shape.get("alone", self.second[1]))
        self.first = {name: value.detach().clone() for name, value in learner.named_parameters()}
        self.renderer = Renderer(learner.model.device)
        super().__init__(settings, learner.trained_parameters(False), weights=dict(learner.named_parameters()))
        self.part = 1  # each part of an update is one pass

    def shaped(self, name: str, value: Tensor) -> Tensor:
        """Give embedding tables three axes, so that Adam updates them, and make the patch embedding a matrix."""
        if "embedding.weight" in name or "embed_tokens" in name:
            return value[None] if value.ndim == 2 else value.flatten(1)
        return value

    def begin(self) -> None:
        """Start a stream of new scenes. Seeds continue from the number of scenes seen, ``progress.tokens``."""
        settings, first = self.settings, self.progress.tokens
        size, questions, reading = settings.batch, 1, 0.0
        if self.in_second_stage:
            size, questions, reading = settings.later or size, QUESTIONS, self.reading
        part, writer = settings.part or -(-size // settings.workers), Writer(self.tokenizer)
        made = Lessons(writer, self.learner.grid, size, part, questions, reading, first)
        workers = 0 if self.device.type == "cpu" else min(cores(), 4)
        self.stream = self._drawn(DataLoader(made, None, num_workers=workers, collate_fn=list))

    def _drawn(self, made: Iterable[list[Arrays]]) -> Iterator[list[Batch]]:
        """Yield updates as batches. A thread draws one while the one before is learned from."""
        updates = ([batch_of(part, self.renderer) for part in parts] for parts in made)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, updates)
            while True:
                ready, waiting = waiting.result(), pool.submit(next, updates)
                yield ready

    def enter(self, stage: str) -> None:
        """Begin the stage with a new optimizer and new batches."""
        super().enter(stage)
        leaves = self.learner.trained_parameters(self.in_second_stage)
        self.move(leaves, rate_factors={name: SLOWER for name in leaves if ".text_model." not in name})
        self.begin()

    def learn_from(self, parts: list[Batch]) -> Step:
        """Return loss and gradients, averaged over ``parts``."""

        def loss(some: Sequence[Batch]) -> Tensor:
            visual = self.learner.visual_tokens(some[0].pixels)
            total = self.learner.patch_loss(visual, some[0])
            if self.in_second_stage:
                total = TEACHER * total + self.learner.word_loss(visual, some[0])
            return total / len(parts)

        return self.learn(parts, loss, sum(len(part.pixels) for part in parts))

    @torch.no_grad()
    def accuracy(self, count: int) -> dict[str, float]:
        """Return the accuracy on non-empty patches of held-out scenes and, in the second stage, of answers.

        ``admitted`` and ``admitted_wrongly``: shares of the pictures without and with known things of which the model says that
        it knows nothing.
        """
        learner, made = self.learner, [scenes.held_out(number) for number in range(count)]
        paints = scenes.stacked([paint for _, paint in made])
        visual = learner.visual_tokens(self.renderer.seeded(0).draw(paints))
        labels = [patches_of(scene, learner.grid) for scene, _ in made]
        shows, found = np.stack([one["kind"] for one in labels]) > 0, dict[str, float]()
        for name, head in learner.patch_heads.items():
            right = head(visual).argmax(-1).cpu().numpy() == np.stack([one[name] for one in labels])
            found[f"patch_{name}"] = float(right[shows].mean())
        if not self.in_second_stage:
            return found
        asked = [(place, one) for place, (scene, _) in enumerate(made) for one in exchanges(scene, 3)]
        with parallel.arithmetic(self.device):
            answered = graded(learner, self.tokenizer, [one for _, one in asked], visual[[place for place, _ in asked]])
        admitted = {True: list[bool](), False: list[bool]()}
        for (place, exchange), one in zip(asked, answered, strict=True):
            if exchange.kind == "describe":
                admitted[not made[place][0].things].append(admits(one.reply))
        found |= {"admitted": float(np.mean(admitted[True])), "admitted_wrongly": float(np.mean(admitted[False]))}
        return found | metrics([one for one in answered if one.exchange.kind != "describe"])

    def measure(self) -> dict[str, float]:
        return self.accuracy(2 * self.settings.measured)

    def metrics(self) -> dict[str, float]:
        return self.accuracy(4 * MEASURED)

    def save(self, path: Path, card: dict[str, str]) -> None:
        stored = {
            name: value.lerp(self.first[name].view_as(value), self.kept) for name, value in self.optimizer.parameters.items()
        }
        with self.using(stored):
            write_model(path, self.learner.model, self.tokenizer.backend_tokenizer, card)


def make(job: Job) -> None:
    """Train a new model, or go on from the weights that the recipe names, measure on held-out scenes, and write the weights."""
    device, start = choose_device(job.device), job.recipe.shape.get("start")
    settings, data = driver.settings_for(job, device), DATA
    torch.manual_seed(0)
    if start is None:
        tokenizer = train_tokenizer()
        learner = new_model(job.recipe.shape, len(tokenizer)).to(device)
    else:
        path = shipped_file(WEIGHTS / f"{start}.safetensors")
        data, (model, tokenizer) = f"{named(path)}, then {DATA}", load(path)
        learner = Learner(model.train().requires_grad_(True)).to(device)
    learner.learn_names(tokenizer)
    state = ScenesTraining(learner, tokenizer, settings, job.recipe.shape)
    driver.run(job, state, data, licence="Apache-2.0", tokenizer_hash=tokenizer_hash(tokenizer))
