"""The target's hidden states on its own answers about pictures, as the recipes of feature drafters read them.

Computed on first use and kept in memory as float16: a few hundred megabytes. Same face as ``features.FeatureStore``.
Axis names: ``token``, ``tap``, ``hidden``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.models.hub.cache_dir import cache_folder
from specviz.targets.attention_maps import (
    entropies,
    importance,
    middle_layers,
    most_looked_at,
)
from specviz.training import data, parallel
from specviz.training.families import scenes
from specviz.training.families.scenes import FRESH, held_out
from specviz.training.families.scenes_answers import answers
from specviz.training.families.scenes_batches import Writer
from specviz.training.families.scenes_net import Learner
from specviz.training.families.scenes_words import exchanges
from specviz.training.features import DialogueFeatures

SCENES = 700
HELD_OUT_SCENES = 70
QUESTIONS = 2
_SEEDS_FROM = 1 << 36
_AT_A_TIME = 35
_WARM_EVERY = (0.0, 1.0, 0.0, 0.7)
"""Temperatures, in turn over the training scenes; held-out answers are greedy."""
_LONGEST = 220


@dataclass(frozen=True)
class PictureDialogues:
    """``dialogues`` without picture tokens, and by dialogue the ``scene`` it is about; the last scenes are held out."""

    dialogues: data.Dialogues
    scene: np.ndarray

    def split(self) -> tuple[list[int], list[int]]:
        """Numbers to train on, and those kept out."""
        first = SCENES - HELD_OUT_SCENES
        numbers = range(len(self.scene))
        return [n for n in numbers if self.scene[n] < first], [n for n in numbers if self.scene[n] >= first]


def scene_of(number: int) -> scenes.Scene:
    """The scene of this number."""
    first = SCENES - HELD_OUT_SCENES
    return scenes.compose(_SEEDS_FROM + number) if number < first else held_out(FRESH, 5000 + number)


def markers(writer: Writer) -> data.Markers:
    """The template's fixed ids where the picture is left out."""
    return data.Markers((writer.user,), (writer.user,), writer.end)


def answered(learner: Learner, tokenizer: Any, path: Path, report: Callable[[str], None]) -> PictureDialogues:
    """The model's own answers, from the file that belongs to the weights in ``path``, or written now."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    file = cache_folder() / "data" / f"pictures-{digest}.npz"
    if not file.is_file():
        written = _write(learner, tokenizer, report)
        data.write(file, written.dialogues)
        np.save(file.with_suffix(".npy"), written.scene)
    return PictureDialogues(data.read(file), np.load(file.with_suffix(".npy"), allow_pickle=False))


@torch.no_grad()
def _write(learner: Learner, tokenizer: Any, report: Callable[[str], None]) -> PictureDialogues:
    writer, generator = Writer(tokenizer), torch.Generator(learner.model.device).manual_seed(0)
    spoken: list[tuple[list[int], list[int], float, int]] = []
    for start in range(0, SCENES, _AT_A_TIME):
        numbers = range(start, min(SCENES, start + _AT_A_TIME))
        visual = visual_tokens_of(learner, numbers)
        warm = 0.0 if start >= SCENES - HELD_OUT_SCENES else _WARM_EVERY[start // _AT_A_TIME % len(_WARM_EVERY)]
        placed_exchanges = [
            (place, exchange) for place, number in enumerate(numbers) for exchange in exchanges(scene_of(number), QUESTIONS)
        ]
        for long in (True, False):
            part = [(place, exchange) for place, exchange in placed_exchanges if (exchange.kind == "describe") == long]
            ids = [writer.backend.encode(exchange.question, add_special_tokens=False).ids for _, exchange in part]
            with parallel.arithmetic(learner.model.device):
                answer_rows = answers(learner, visual[[place for place, _ in part]], ids, writer, _LONGEST, warm, generator)
            spoken += [
                (question, row, warm, numbers[place]) for (place, _), question, row in zip(part, ids, answer_rows, strict=True)
            ]
        report(f"{len(spoken)} answers about {numbers[-1] + 1} of {SCENES} scenes")
    return _packed(spoken, writer)


def visual_tokens_of(learner: Learner, numbers: range | list[int]) -> Tensor:
    """Visual tokens [scene, visual, hidden] of these scenes."""
    pictures = np.stack([scenes.draw(scene_of(number)) for number in numbers])
    return learner.visual_tokens(torch.from_numpy(pictures).to(learner.model.device))


def _packed(spoken: list[tuple[list[int], list[int], float, int]], writer: Writer) -> PictureDialogues:
    rows = [[*question, writer.assistant, *answer, writer.end] for question, answer, _, _ in spoken]
    dialogues = data.Dialogues(
        np.concatenate([np.asarray(row, dtype=np.int64) for row in rows]),
        np.concatenate(([0], np.cumsum([len(row) for row in rows]))),
        np.asarray([len(question) + 1 for question, _, _, _ in spoken], dtype=np.int64),
        np.asarray([warm for _, _, warm, _ in spoken], dtype=np.float32),
    )
    return PictureDialogues(dialogues, np.asarray([number for _, _, _, number in spoken], dtype=np.int64))


WORDS, ALL, COMPRESSED = "words", "all", "compressed"
"""What a drafter is shown of a prompt: its words, everything, or its words and the visual tokens looked at most."""
MIDDLE = -1
"""Stands for the hidden state whose layer looks least scattered, chosen for every token."""


@dataclass(frozen=True)
class PictureDialogueFeatures(DialogueFeatures):
    """``tokens`` may hold places of a picture, whose embedding is tap 0; ``positions`` [token] are the target's where the
    drafter keeps them, else counted anew."""

    positions: Tensor


class PictureStore:
    """Hidden states ``taps`` (transformers' numbering, or ``MIDDLE``) of a ``view`` of each dialogue."""

    keeps = True

    def __init__(
        self,
        learner: Learner,
        writer: Writer,
        spoken: PictureDialogues,
        taps: Sequence[int],
        view: str,
        keep: float = 1.0,
    ) -> None:
        self.taps, self.view, self.keep = tuple(taps), view, keep
        self.dialogues, self.spoken, self.writer = spoken.dialogues, spoken, writer
        self.device = learner.model.device
        self._learner = learner
        self._features: dict[int, tuple[Tensor, Tensor, Tensor, int]] = {}

    def has(self, number: int) -> bool:
        """Whether this dialogue has been read already."""
        return number in self._features

    def known(self, number: int) -> bool:
        """The same: all that was read is kept."""
        return self.has(number)

    def get(self, numbers: Sequence[int]) -> list[DialogueFeatures]:
        """The dialogues with their features; what is missing is computed first."""
        for number in numbers:
            if number not in self._features:
                self._features[number] = self._compute(number)
        dialogues: list[DialogueFeatures] = []
        for number in numbers:
            tokens, features, positions, first = self._features[number]
            dialogues.append(PictureDialogueFeatures(tokens, features.float(), first, positions))
        return dialogues

    @torch.no_grad()
    def _compute(self, number: int) -> tuple[Tensor, Tensor, Tensor, int]:
        text = self._learner.model.model.text_model
        with parallel.arithmetic(self.device):
            visual = visual_tokens_of(self._learner, [int(self.spoken.scene[number])])
        pictured = visual.shape[1]
        ids = [self.writer.user, *[self.writer.image] * pictured, *self.dialogues.of(number).tolist()]
        tokens = torch.tensor(ids, device=self.device)
        embedded = text.embed_tokens(tokens)
        embedded[1 : 1 + pictured] = visual[0].float()
        places = torch.arange(len(ids), device=self.device)
        with parallel.arithmetic(self.device):
            passed = text(inputs_embeds=embedded[None], position_ids=places[None], use_cache=False, output_hidden_states=True)
        hidden = {layer: states[0].float() for layer, states in enumerate(passed.hidden_states)}
        prefill = pictured + int(self.dialogues.prompt[number])
        chosen = self._chosen(hidden, places, pictured, prefill)
        features = torch.stack([self._tap(tap, hidden, places) for tap in self.taps], dim=1)
        dropped = len(ids) - len(chosen)
        first = 1 + pictured + int(self.dialogues.prompt[number]) - dropped
        positions = places[chosen] if self.view == COMPRESSED else places[: len(chosen)]
        return tokens[chosen], features[chosen].clamp(-65504, 65504).half(), positions, first

    def _chosen(self, hidden: dict[int, Tensor], places: Tensor, pictured: int, prefill: int) -> Tensor:
        """Places the drafter is shown. ``prefill`` tokens, the prompt but its last, are all there is when it is chosen."""
        keep = np.ones(len(places), dtype=bool)
        if self.view == WORDS:
            keep[1 : 1 + pictured] = False
        elif self.view == COMPRESSED:
            prompt = {layer: states[:prefill] for layer, states in hidden.items()}
            text = self._learner.model.model.text_model
            weights = importance(text, prompt, places[:prefill], range(1, 1 + pictured))
            keep[1 : 1 + pictured] = False
            keep[[1 + place for place in most_looked_at(weights, self.keep)]] = True
        return places[torch.from_numpy(keep).to(places.device)]

    def _tap(self, tap: int, hidden: dict[int, Tensor], places: Tensor) -> Tensor:
        if tap != MIDDLE:
            return hidden[tap]
        layers = middle_layers(len(hidden) - 1)
        best = entropies(self._learner.model.model.text_model, layers, hidden, places).argmin(0)
        return torch.stack([hidden[layer] for layer in layers])[best, places]
