"""What the small vision-language model says about scenes, written by itself: what its drafters learn from.

Answers lie in a dialogue file like any other, without the picture's tokens; beside them, which scene each is about.
Scenes of the held-out part are never among the training part, and training never shows them to the model either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.models.hub.cache_dir import cache_folder
from specviz.training.common import data, parallel
from specviz.training.vision import scenes
from specviz.training.vision.picture_answers import answers
from specviz.training.vision.scene_batches import FRESH, Writer, exchanges, held_out
from specviz.training.vision.scenes_model import Learner

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
