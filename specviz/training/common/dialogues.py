"""``train dialogues``: data for drafters, written by the target itself, the user's questions included.

The user turn is sampled at temperature 1 (top 64) behind the chat template's fixed part, three of four with their first
words given, so that all kinds of question occur; the answer at temperature 0, 0.3, 0.7 or 1. So what a drafter learns is
what the target says, and no outside text is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.models.loading_lock import quiet
from specviz.training.common import data
from specviz.training.common.openings import opening
from specviz.training.common.target_assets import Material, material
from specviz.training.registry import Job

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
TOP_K = 64
LONGEST_QUESTION = 80
LONGEST_ANSWER = 288
SHORTEST_QUESTION = 3


@dataclass(frozen=True)
class Dialogue:
    """One question, the separator behind it, and one answer, as ids."""

    question: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float


def make(job: Job) -> None:
    """Write dialogues until the minutes are over; ``resume`` adds to the file there is, else it is written anew."""
    path = data.place(job.data)
    stuff = material(job.device)
    old = data.read(path) if job.resume and path.is_file() else None
    made: list[Dialogue] = [] if old is None else list(_dialogues_of(old))
    known = {dialogue.question for dialogue in made}
    batch = 256 if stuff.target.device.type == "cuda" else 32
    until = time.monotonic() + 60 * job.minutes
    while time.monotonic() < until:
        torch.manual_seed(len(made))
        given = [_ids(stuff, opening(len(made) + row)) if row % 4 else () for row in range(batch)]
        asked = [question for question in questions(stuff, given) if question not in known]
        known.update(asked)
        if asked:
            made.extend(answers(stuff, asked, TEMPERATURES[len(made) // batch % len(TEMPERATURES)]))
            data.write(path, packed(made))
        print(f"{len(made)} dialogues, {sum(len(one.answer) for one in made)} answer tokens", flush=True)


@torch.inference_mode()
def questions(stuff: Material, openings: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Different user turns as the target imagines them, at most one for each of ``openings`` (ids a turn begins with,
    none where the target is free), each with the separator behind it.

    Turns that never end are left out, and so are turns shorter than three tokens.
    """
    prefix = stuff.markers.prefix
    ids, mask = _padded(stuff, [(*prefix, *given) for given in openings])
    found = _generate(stuff, ids, mask, 1.0, LONGEST_QUESTION)[:, ids.shape[1] :].tolist()
    ended = ([*given, *_until(row, stuff.markers.end)] for given, row in zip(openings, found, strict=True))
    whole = [row[:-1] for row in ended if row[-1] == stuff.markers.end and len(row) > SHORTEST_QUESTION]
    return list(dict.fromkeys((*row, *stuff.answer) for row in whole))


@torch.inference_mode()
def answers(
    stuff: Material, asked: Sequence[tuple[int, ...]], temperature: float, longest: int = LONGEST_ANSWER
) -> list[Dialogue]:
    """The target's answer to each question, at ``temperature``; one of more than ``longest`` tokens is cut."""
    ids, mask = _padded(stuff, [(*stuff.markers.prefix, *question) for question in asked])
    found = _generate(stuff, ids, mask, temperature, longest)[:, ids.shape[1] :]
    said = [_until(row, stuff.markers.end) for row in found.tolist()]
    return [Dialogue(question, tuple(row), temperature) for question, row in zip(asked, said, strict=True)]


def packed(made: Sequence[Dialogue]) -> data.Dialogues:
    """Dialogues as arrays."""
    length = [len(one.question) + len(one.answer) for one in made]
    return data.Dialogues(
        tokens=np.array([token for one in made for token in (*one.question, *one.answer)], dtype=np.int64),
        starts=np.concatenate(([0], np.cumsum(length))).astype(np.int64),
        prompt=np.array([len(one.question) for one in made], dtype=np.int64),
        temperature=np.array([one.temperature for one in made], dtype=np.float32),
    )


def _dialogues_of(stored: data.Dialogues) -> Iterator[Dialogue]:
    for number in range(len(stored)):
        tokens, asked = stored.of(number).tolist(), int(stored.prompt[number])
        yield Dialogue(tuple(tokens[:asked]), tuple(tokens[asked:]), float(stored.temperature[number]))


def _ids(stuff: Material, text: str) -> tuple[int, ...]:
    return tuple(stuff.target.tokenizer(text, add_special_tokens=False)["input_ids"])


def _padded(stuff: Material, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Prompts of different lengths as ids and mask, [prompt, token], padded in front."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), stuff.markers.end, device=stuff.target.device)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, device=ids.device)
        mask[row, width - len(prompt) :] = 1
    return ids, mask


def _until(row: Sequence[int], end: int) -> list[int]:
    """``row`` up to and with its first ``end``; what follows is padding."""
    return list(row[: row.index(end) + 1] if end in row else row)


def _generate(stuff: Material, ids: Tensor, mask: Tensor, temperature: float, longest: int) -> Tensor:
    law: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        law = {"do_sample": True, "temperature": temperature, "top_k": TOP_K, "top_p": 1.0}
    ends = {"eos_token_id": stuff.markers.end, "pad_token_id": stuff.markers.end}
    with quiet():
        return stuff.target.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=longest, use_cache=True, **law, **ends
        )
