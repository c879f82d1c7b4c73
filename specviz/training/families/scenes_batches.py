"""Scenes as batches: pictures, what a dense teacher says of every patch, and packed conversations that share a picture.

One row holds a prefix (the user's mark and the picture's tokens) and behind it several conversations that do not see each
other: the description first, then short questions. So the picture is encoded and read once for all of them.
Axis names: ``scene``, ``visual`` (tokens of the picture), ``token``, ``question``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from specviz.models.vision.scenes import ASSISTANT, END, IMAGE, SPECIAL, USER, tokenizer_from
from specviz.training.families import scenes
from specviz.training.families.scenes_words import DESCRIBE, LESSONS, READING, Exchange, Speaker, drill, exchanges

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


def train_tokenizer(examples: int = 4000, vocab: int = 1024) -> Any:
    """Byte-level pieces learned from what is said about scenes; any other text can still be spelled."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(SPECIAL), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    texts = (part for seed in range(examples) for exchange in exchanges(scenes.compose(seed), 6) for part in _spoken(exchange))
    tokenizer.train_from_iterator([*texts, *DESCRIBE, *_words()], trainer)
    return tokenizer_from(tokenizer.to_str())


def _spoken(exchange: Exchange) -> tuple[str, str]:
    return exchange.question, exchange.spoken


def _words() -> Iterator[str]:
    """Every name in every form often enough to become one token."""
    for word in KINDS:
        for _ in range(60):
            yield f"a {word} {word}s"


class Writer:
    """Conversations to token ids."""

    def __init__(self, tokenizer: Any) -> None:
        self.backend = tokenizer.backend_tokenizer
        self.end, self.user, self.assistant, self.image = (
            int(self.backend.token_to_id(token)) for token in (END, USER, ASSISTANT, IMAGE)
        )

    def conversation(self, exchange: Exchange, looking: bool = True) -> tuple[list[int], list[int]]:
        """Tokens behind the picture, and labels: for each the token that comes next where it belongs to the answer.

        Without ``looking`` nothing is learned of what is looked at before the answer but how it begins.
        """
        question, answer = (self.backend.encode(text, add_special_tokens=False).ids for text in _spoken(exchange))
        tokens = [*question, self.assistant, *answer]
        labels = [IGNORED] * len(question) + [*answer, self.end]
        if exchange.look and not looking:
            look_length = len(self.backend.encode(exchange.look, add_special_tokens=False).ids)
            unlearned = slice(len(question) + _BEGINNING, len(question) + look_length)
            labels[unlearned] = [IGNORED] * (look_length - _BEGINNING)
        return tokens, labels

    def conversations(self, every: Sequence[Exchange]) -> list[tuple[list[int], list[int]]]:
        """All about one scene. What is looked at is the same in each: it is learned once, so that answers count."""
        first = next((place for place, exchange in enumerate(every) if exchange.look), 0)
        return [self.conversation(exchange, place == first) for place, exchange in enumerate(every)]

    def page(self, every: Sequence[Exchange]) -> tuple[list[int], list[int]]:
        """One conversation about a picture that nobody sees: the first answer says what is looked at, the later ones lean
        on it. Labels are on answers' last sentences alone, which can be known from what stands there."""
        tokens: list[int] = []
        labels: list[int] = []
        for place, exchange in enumerate(every):
            turn, turn_labels = self.conversation(replace(exchange, look="") if place else exchange, False)
            if not place and exchange.look:
                begun = turn_labels.index(next(label for label in turn_labels if label != IGNORED))
                turn_labels[begun : begun + _BEGINNING] = [IGNORED] * _BEGINNING
            tokens += [self.user, *turn, self.end]
            labels += [IGNORED, *turn_labels, IGNORED]
        return tokens, labels

    def drill(self, look: str, every: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """A look, then questions and answers in a few words; labels are on the answers."""
        tokens = [self.user, self.assistant, *self._ids(look)]
        labels = [IGNORED] * len(tokens)
        for question, answer in every:
            question_ids, answer_ids = self._ids(question), self._ids(answer)
            tokens += [*question_ids, *answer_ids]
            labels += [*[IGNORED] * (len(question_ids) - 1), *answer_ids, IGNORED]
        return tokens, labels

    def _ids(self, text: str) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=False).ids)


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


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=torch.long)


def batch_of(chosen: Sequence[scenes.Scene], writer: Writer, grid: int, questions: int) -> Batch:
    """Scenes to one batch."""
    conversations = [writer.conversations(exchanges(scene, questions, LESSONS)) for scene in chosen]
    empty: tuple[list[int], list[int]] = ([writer.end], [IGNORED])
    short = [part for row in conversations for part in (row[1:] + [empty] * questions)[:questions]]
    patches = [patches_of(scene, grid) for scene in chosen]
    return Batch(
        pixels=torch.from_numpy(np.stack([scenes.draw(scene) for scene in chosen])),
        patches={name: torch.from_numpy(np.stack([scene_patches[name] for scene_patches in patches])) for name in HEADS},
        long=_padded([row[0][0] for row in conversations], writer.end),
        long_labels=_padded([row[0][1] for row in conversations], IGNORED),
        short=_padded([tokens for tokens, _ in short], writer.end).view(len(chosen), questions, -1),
        short_labels=_padded([labels for _, labels in short], IGNORED).view(len(chosen), questions, -1),
    )


def pages(chosen: Sequence[scenes.Scene], writer: Writer, questions: int) -> tuple[Tensor, Tensor]:
    """Drills and conversations about scenes that nobody draws, tokens and labels, int64 [page, token]."""
    token_rows = []
    for scene in chosen:
        speaker = Speaker(scenes.snapped(scene), np.random.default_rng([scene.seed, 13]))
        if speaker.generator.random() < _DRILLS:
            token_rows.append(writer.drill(speaker.look(), drill(speaker, 4 * questions)))
            continue
        page_exchanges = sorted(speaker.questions(questions, READING), key=lambda exchange: not exchange.look)
        token_rows.append(writer.page(page_exchanges))
    return _padded([tokens for tokens, _ in token_rows], writer.end), _padded([labels for _, labels in token_rows], IGNORED)


def batches(
    writer: Writer, grid: int, size: int, part: int, questions: int, start: int, reading: int = 0
) -> Iterator[list[Batch]]:
    """Endless updates of ``size`` scenes in parts of ``part``, alike in length; scene numbers from ``start`` on.

    ``reading`` is how many pages are read for each scene that is seen; they tell of other scenes.
    """
    seed = start
    while True:
        chosen = [scenes.compose(seed + place) for place in range(size)]
        seed += size
        chosen.sort(key=lambda scene: len(scene.things))
        parts = [batch_of(chosen[place : place + part], writer, grid, questions) for place in range(0, size, part)]
        if reading:
            unseen = [scenes.compose(_UNSEEN_FROM + reading * (seed - size) + place) for place in range(reading * size)]
            unseen.sort(key=lambda scene: len(scene.things))
            cut = -(-len(unseen) // len(parts))
            for place, batch in enumerate(parts):
                read, labels = pages(unseen[place * cut : (place + 1) * cut], writer, questions)
                parts[place] = replace(batch, read=read, read_labels=labels)
        yield parts
