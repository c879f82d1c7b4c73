"""Scenes as batches: pictures, what a dense teacher says of every patch, and packed conversations that share a picture.

One row holds a prefix (the user's mark and the picture's tokens) and behind it several conversations that do not see each
other: the description first, then short questions. So the picture is encoded and read once for all of them.
Axis names: ``scene``, ``visual`` (tokens of the picture), ``token``, ``question``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.models.vision.scenes import ASSISTANT, END, IMAGE, SPECIAL, USER, tokenizer_from
from specviz.training.families import scenes
from specviz.training.families.scenes_words import DESCRIBE, LESSONS, READING, Exchange, Speaker, drill, exchanges
from specviz.training.phrases import byte_pairs

IGNORED = -100
_BEGINNING = 3
"""Tokens of a look that every conversation teaches: enough to know that this kind of question begins with one."""
_DRILLS = 0.7
"""Of the pages, those that are drills."""
_UNSEEN_FROM = 1 << 39
"""Seeds from here on are of scenes that are told of while training, and never drawn."""
KINDS = (*scenes.NAMES, *scenes.SHAPES)
HEADS = {"kind": len(KINDS) + 1, "colour": len(scenes.COLOURS) + 1, "size": len(scenes.SIZES) + 1, "region": 10}
"""What the dense teacher says of a patch, and how many answers there are; 0 is "nothing here" (or no colour)."""


@dataclass(frozen=True)
class Batch:
    """``pixels`` uint8 [scene, row, column, 3]; ``patches`` by head, int64 [scene, visual]; ``long`` and ``short`` tokens
    with labels, int64 [scene, token] and [scene, question, token]: labels are IGNORED but on answers. ``read`` and its
    labels, int64 [page, token], are conversations without a picture."""

    pixels: Tensor
    patches: dict[str, Tensor]
    long: Tensor
    long_labels: Tensor
    short: Tensor
    short_labels: Tensor
    read: Tensor | None = None
    read_labels: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """The batch on this device."""
        fields = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, patches={name: value.to(device) for name, value in self.patches.items()}, **fields)


def train_tokenizer(examples: int = 4000, vocab: int = 1024) -> Any:
    """Byte-level pieces learned from what is said about scenes; any other text can still be spelled."""
    spoken = (exchange for seed in range(examples) for exchange in exchanges(scenes.compose(seed), 6))
    texts = [text for exchange in spoken for text in (exchange.question, exchange.spoken)]
    # Every name in every form often enough to become one token.
    names = [f"a {word} {word}s" for word in KINDS for _ in range(60)]
    return tokenizer_from(byte_pairs([*texts, *DESCRIBE, *names], vocab, SPECIAL).to_str())


Row = tuple[list[int], list[int]]
"""Tokens and their labels."""


class Writer:
    """Conversations to token ids."""

    def __init__(self, tokenizer: Any) -> None:
        self.backend = tokenizer.backend_tokenizer
        self.end, self.user, self.assistant, self.image = (
            int(self.backend.token_to_id(token)) for token in (END, USER, ASSISTANT, IMAGE)
        )

    def ids(self, text: str) -> list[int]:
        """A text by itself."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def conversation(self, exchange: Exchange, looking: bool = True) -> Row:
        """Tokens behind the picture, and labels: for each the token that comes next where it belongs to the answer.

        Without ``looking`` nothing is learned of what is looked at before the answer but how it begins.
        """
        question, answer = self.ids(exchange.question), self.ids(exchange.spoken)
        labels = [IGNORED] * len(question) + [*answer, self.end]
        if exchange.look and not looking:
            unlearned = len(self.ids(exchange.look)) - _BEGINNING
            first = len(question) + _BEGINNING
            labels[first : first + unlearned] = [IGNORED] * unlearned
        return [*question, self.assistant, *answer], labels

    def conversations(self, every: Sequence[Exchange]) -> list[Row]:
        """All about one scene. What is looked at is the same in each: it is learned once, so that answers count."""
        first = next((place for place, exchange in enumerate(every) if exchange.look), 0)
        return [self.conversation(exchange, place == first) for place, exchange in enumerate(every)]

    def page(self, every: Sequence[Exchange]) -> Row:
        """One conversation about a picture that nobody sees: the first answer says what is looked at, the later ones lean
        on it. Labels are on answers' last sentences alone, which can be known from what stands there."""
        tokens, labels = list[int](), list[int]()
        for place, exchange in enumerate(every):
            turn, turn_labels = self.conversation(replace(exchange, look="") if place else exchange, False)
            if not place and exchange.look:
                begun = len(self.ids(exchange.question))
                turn_labels[begun : begun + _BEGINNING] = [IGNORED] * _BEGINNING
            tokens += [self.user, *turn, self.end]
            labels += [IGNORED, *turn_labels, IGNORED]
        return tokens, labels

    def drill(self, look: str, every: Sequence[tuple[str, str]]) -> Row:
        """A look, then questions and answers in a few words; labels are on the answers."""
        tokens = [self.user, self.assistant, *self.ids(look)]
        labels = [IGNORED] * len(tokens)
        for question, answer in ((self.ids(question), self.ids(answer)) for question, answer in every):
            tokens += [*question, *answer]
            labels += [*[IGNORED] * (len(question) - 1), *answer, IGNORED]
        return tokens, labels


def patches_of(scene: scenes.Scene, grid: int) -> dict[str, np.ndarray]:
    """What the middle of every patch shows, by head, int64 [visual]."""
    patches = {name: np.zeros((grid, grid), dtype=np.int64) for name in HEADS}
    middle = (np.arange(grid) + 0.5) * scenes.SIDE / grid
    for place in scene.depth:
        thing = scene.things[place]
        reach = max(thing.pixels * 0.46, scenes.SIDE / grid / 2 + 0.5)
        area = np.ix_(np.abs(middle - thing.y) < reach, np.abs(middle - thing.x) < reach)
        patches["kind"][area] = 1 + KINDS.index(thing.name)
        patches["colour"][area] = 1 + list(scenes.COLOURS).index(thing.colour) if thing.colour else 0
        patches["size"][area] = 1 + list(scenes.SIZES).index(thing.size)
        patches["region"][area] = 1 + thing.region
    return {name: value.reshape(-1) for name, value in patches.items()}


def _padded(rows: Sequence[Row], end: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels, int64 [row, token]."""
    tokens, labels = ([torch.tensor(part) for part in parts] for parts in zip(*rows, strict=True))
    return pad_sequence(tokens, True, end), pad_sequence(labels, True, IGNORED)


def batch_of(chosen: Sequence[scenes.Scene], writer: Writer, grid: int, questions: int) -> Batch:
    """Scenes to one batch."""
    conversations = [writer.conversations(exchanges(scene, questions, LESSONS)) for scene in chosen]
    empty: Row = ([writer.end], [IGNORED])
    long = _padded([row[0] for row in conversations], writer.end)
    short = _padded([part for row in conversations for part in (row[1:] + [empty] * questions)[:questions]], writer.end)
    patches = [patches_of(scene, grid) for scene in chosen]
    return Batch(
        torch.from_numpy(np.stack([scenes.draw(scene) for scene in chosen])),
        {name: torch.from_numpy(np.stack([one[name] for one in patches])) for name in HEADS},
        *long, *(part.view(len(chosen), questions, -1) for part in short),
    )  # fmt: skip


def pages(chosen: Sequence[scenes.Scene], writer: Writer, questions: int) -> tuple[Tensor, Tensor]:
    """Drills and conversations about scenes that nobody draws, tokens and labels, int64 [page, token]."""
    rows = []
    for scene in chosen:
        speaker = Speaker(scenes.snapped(scene), np.random.default_rng([scene.seed, 13]))
        if speaker.generator.random() < _DRILLS:
            rows.append(writer.drill(speaker.look(), drill(speaker, 4 * questions)))
        else:
            rows.append(writer.page(sorted(speaker.questions(questions, READING), key=lambda exchange: not exchange.look)))
    return _padded(rows, writer.end)


def batches(
    writer: Writer, grid: int, size: int, part: int, questions: int, start: int, reading: int = 0
) -> Iterator[list[Batch]]:
    """Endless updates of ``size`` scenes in parts of ``part``, alike in length; scene numbers from ``start`` on.

    ``reading`` is how many pages are read for each scene that is seen; they tell of other scenes.
    """
    for first in count(start, size):
        chosen = sorted((scenes.compose(first + place) for place in range(size)), key=lambda scene: len(scene.things))
        parts = [batch_of(chosen[place : place + part], writer, grid, questions) for place in range(0, size, part)]
        if reading:
            told = (scenes.compose(_UNSEEN_FROM + reading * first + place) for place in range(reading * size))
            unseen, cut = sorted(told, key=lambda scene: len(scene.things)), -(-reading * size // len(parts))
            for place, batch in enumerate(parts):
                read, labels = pages(unseen[place * cut : (place + 1) * cut], writer, questions)
                parts[place] = replace(batch, read=read, read_labels=labels)
        yield parts
