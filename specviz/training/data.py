"""Dialogues of the target as training data: files, held-out split, packing into rows, and filters for duplicate texts.

Axis names: ``dialogue``, ``row`` (of a batch), ``token``.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specviz.errors import BadInput
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.packed_model import digest
from specviz.paths import ASSETS
from specviz.training.phrases import KINDS, REPORTED

PREFIX = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n"
ANSWER = "<|im_end|>\n<|im_start|>assistant\n"
TURN = "\n<|im_start|>user\n"
HELD_OUT_EVERY = 20
"""One dialogue in this many is held out. Coprime to the length of a cycle of kinds, so that every kind has held-out turns."""
UNREAD_EVERY = 12
IGNORED = -100
"""Label of a token outside the draft vocabulary or the loss."""


class Markers(NamedTuple):
    """Token ids of the chat template: before the first user turn, before a later user turn, and at the end of a turn."""

    prefix: tuple[int, ...]
    turn: tuple[int, ...]
    end: int


class Dialogue(NamedTuple):
    """One question and one answer, as token ids. The question includes earlier turns and the separator before the answer."""

    question: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float
    kind: str = KINDS[-1]
    held_out: bool = False


@dataclass
class Dialogues:
    """Concatenated dialogues.

    ``tokens`` [token]: all dialogues. ``starts`` [dialogue + 1]: bounds of the dialogues. ``prompt`` [dialogue]: length of the
    question. ``kind`` [dialogue]: index into KINDS; None: the last kind. ``held_out`` [dialogue]: None: every twentieth dialogue.
    """

    tokens: np.ndarray
    starts: np.ndarray
    prompt: np.ndarray
    temperature: np.ndarray
    kind: Any = None
    held_out: Any = None

    def __post_init__(self) -> None:
        if self.kind is None:
            self.kind = np.full(len(self), len(KINDS) - 1)
        if self.held_out is None:
            self.held_out = np.arange(len(self)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1

    def __len__(self) -> int:
        return len(self.prompt)

    def of(self, dialogue: int) -> np.ndarray:
        """Return the tokens of a dialogue, without the prefix of the chat template."""
        return self.tokens[self.starts[dialogue] : self.starts[dialogue + 1]]

    def answer(self, dialogue: int) -> np.ndarray:
        """Return the tokens of an answer."""
        return self.of(dialogue)[self.prompt[dialogue] :]


class Row(NamedTuple):
    """A packed row. ``tokens`` [token + 1]; ``counts`` [token]: whether the loss counts the prediction of the next token."""

    tokens: np.ndarray
    counts: np.ndarray


def place(path: str | None = None) -> Path:
    """Return the path of the dialogue file: ``path``, else $SPECVIZ_DATA, else a file in the cache."""
    file_name = path or os.environ.get("SPECVIZ_DATA")
    return Path(file_name).expanduser() if file_name else cache_folder() / "data" / "smollm2_dialogues.npz"


def find(paths: Sequence[str] = ()) -> list[Path]:
    """Return the dialogue files: ``paths``, else $SPECVIZ_DATA, else the shipped files and the file in the cache.

    Raises BadInput if a file is missing.
    """
    files = [place(path) for path in paths] or [place()]
    if not paths and "SPECVIZ_DATA" not in os.environ:
        files = [*sorted((ASSETS / "data").glob("*.npz")), *(file for file in files if file.is_file())] or files
    for file in files:
        if not file.is_file():
            raise BadInput(
                f"There is no dialogue file {file}: create one with `python -m specviz train dialogues`, or set SPECVIZ_DATA "
                "to the path of one."
            )
    return files


def read(path: Path) -> Dialogues:
    """Read a dialogue file. Raises BadInput if an array is missing or the lengths are inconsistent."""
    with np.load(path) as file:
        missing = {"tokens", "length", "prompt_length", "temperature"} - set(file.files)
        if missing:
            raise BadInput(f"{path.name} lacks {', '.join(sorted(missing))}: recreate the file with `train dialogues`.")
        tokens, length = file["tokens"].astype(np.int64), file["length"].astype(np.int64)
        prompt, temperature = file["prompt_length"].astype(np.int64), file["temperature"].astype(np.float32)
        facts = [file[name] for name in ("kind", "held_out") if name in file.files]
    if length.sum() != len(tokens) or len(prompt) != len(length) or (prompt >= length).any():
        raise BadInput(f"{path.name} is damaged: the lengths are inconsistent. Recreate the file with `train dialogues`.")
    return Dialogues(tokens, np.concatenate(([0], np.cumsum(length))), prompt, temperature, *facts)


def read_all(files: Sequence[Path]) -> Dialogues:
    """Read several dialogue files, and omit dialogues whose answer nearly repeats an earlier answer."""
    if len(files) == 1:
        return read(files[0])
    every, known = (dialogue for file in files for dialogue in dialogues_of(read(file))), KnownTexts()
    return packed([dialogue for dialogue in every if not known.has_answer(dialogue.question, dialogue.answer)])


def packed(dialogues: Sequence[Dialogue]) -> Dialogues:
    """Convert dialogues to arrays."""
    tokens = [token for dialogue in dialogues for token in (*dialogue.question, *dialogue.answer)]
    lengths = [len(dialogue.question) + len(dialogue.answer) for dialogue in dialogues]
    return Dialogues(
        np.array(tokens, dtype=np.int64),
        np.cumsum([0, *lengths]),
        np.array([len(dialogue.question) for dialogue in dialogues], dtype=np.int64),
        np.array([dialogue.temperature for dialogue in dialogues], dtype=np.float32),
        np.array([KINDS.index(dialogue.kind) for dialogue in dialogues], dtype=np.int64),
        np.array([dialogue.held_out for dialogue in dialogues], dtype=bool),
    )


def dialogues_of(stored: Dialogues) -> Iterator[Dialogue]:
    """Yield the dialogues of ``stored``."""
    for number, (prompt, temperature) in enumerate(zip(stored.prompt.tolist(), stored.temperature.tolist(), strict=True)):
        ids = tuple(stored.of(number).tolist())
        kind, held_out = KINDS[stored.kind[number]], bool(stored.held_out[number])
        yield Dialogue(ids[:prompt], ids[prompt:], temperature, kind, held_out)


def write(path: Path, dialogues: Dialogues) -> None:
    """Write a dialogue file atomically. LZMA takes a quarter less than numpy's own compression."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "tokens": dialogues.tokens.astype(np.uint16), "length": np.diff(dialogues.starts).astype(np.uint16),
        "prompt_length": dialogues.prompt.astype(np.uint16), "temperature": dialogues.temperature.astype(np.float16),
        "kind": dialogues.kind.astype(np.uint8), "held_out": dialogues.held_out,
    }  # fmt: skip
    fresh = path.with_name(f"{path.stem}.new.npz")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_LZMA) as file:
        for name, values in arrays.items():
            with file.open(f"{name}.npy", "w") as entry:
                np.save(entry, values)
    os.replace(fresh, path)


def split(dialogues: Dialogues) -> tuple[list[int], list[int]]:
    """Return the indices of training and held-out dialogues. Held-out dialogues with a question from training are omitted."""
    questions = [tuple(dialogues.of(number)[: dialogues.prompt[number]]) for number in range(len(dialogues))]
    held_out, training = (np.flatnonzero(part).tolist() for part in (dialogues.held_out, ~dialogues.held_out))
    trained_questions = {questions[number] for number in training}
    return training, [number for number in held_out if questions[number] not in trained_questions]


def greedy_only(dialogues: Dialogues, held_out: Sequence[int]) -> list[int]:
    """Return the held-out dialogues with greedy answers.

    The kinds in REPORTED alternate, so that any prefix of the list is balanced. Dialogues of other kinds are returned only if
    there are none of these kinds.
    """
    numbers = [number for number in held_out if dialogues.temperature[number] == 0]
    piles = by_kind(dialogues, numbers).values()
    return [number for several in zip_longest(*piles) for number in several if number is not None] or numbers


def by_kind(dialogues: Dialogues, numbers: Sequence[int]) -> dict[str, list[int]]:
    """Group dialogue ``numbers`` by kind, for the kinds in REPORTED; empty kinds are left out."""
    piles = {kind: [number for number in numbers if KINDS[dialogues.kind[number]] == kind] for kind in REPORTED}
    return {kind: pile for kind, pile in piles.items() if pile}


def split_unread(dialogues: Dialogues, training: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split training dialogues into those that drafters learn from, and one in twelve for later fine-tuning.

    Fine-tuning, such as GTO's, gains nothing on text that the initial drafter has memorised. The split depends only on the tokens
    of a dialogue, so it does not change when the file grows.
    """
    unread = {number for number in training if zlib.crc32(dialogues.of(number).astype("<i8").tobytes()) % UNREAD_EVERY == 0}
    return [number for number in training if number not in unread], sorted(unread)


def draft_index(ids: Tensor, vocab: int) -> Tensor:
    """Return each token's index in the draft vocabulary ``ids``, IGNORED for a token outside it: int64 [vocab]."""
    places = torch.full((vocab,), IGNORED, dtype=torch.long, device=ids.device)
    places[ids] = torch.arange(len(ids), device=ids.device)
    return places


def draft_vocabulary(
    dialogues: Dialogues, training: Sequence[int], size: int, vocab: int, needed: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``size`` most frequent tokens of the training answers, ascending, and their counts.

    The tokens ``needed`` are always included.
    """
    count = np.zeros(vocab, dtype=np.int64)
    for number in training:
        count += np.bincount(dialogues.answer(number), minlength=vocab)
    rank = count.astype(np.float64)
    rank[list(needed)] = np.inf
    ids = np.sort(np.argsort(-rank, kind="stable")[:size])
    return ids, count[ids]


def cycle_shuffled(chosen: Sequence[int], start: int, count: int, seed: Sequence[int]) -> list[int]:
    """Return elements ``start`` to ``start + count`` of an endless sequence of passes over ``chosen``, each in random order.

    Every element occurs once per pass, and any ``start`` continues the same sequence.
    """
    places, size = range(start, start + count), len(chosen)
    orders = {turn: np.random.default_rng([*seed, turn, size]).permutation(size) for turn in {place // size for place in places}}
    return [int(chosen[orders[place // size][place % size]]) for place in places]


def rows(
    dialogues: Dialogues, chosen: Sequence[int], markers: Markers, length: int, generator: np.random.Generator
) -> Iterator[Row]:
    """Yield endless rows of ``length`` tokens: the prefix, then dialogues as turns of one chat, reshuffled in every pass.

    A dialogue cut off by the end of a row is repeated at the start of the next row. Every answer that fits into a row thus occurs
    in full, without padding; longer answers are truncated.
    """
    tokens: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    filled = 0
    while True:
        order = generator.permutation(np.asarray(chosen))
        place = 0
        while place < len(order):
            if not filled:
                prefix = np.asarray(markers.prefix, dtype=np.int64)
                tokens, counts, filled = [prefix], [np.zeros(len(prefix), dtype=bool)], len(prefix)
            dialogue_tokens, counted = _turn(dialogues, int(order[place]), markers)
            tokens.append(dialogue_tokens)
            counts.append(counted)
            filled += len(dialogue_tokens)
            if filled <= length:
                place += 1
                continue
            yield Row(np.concatenate(tokens)[: length + 1], np.concatenate(counts)[1 : length + 1])
            filled = 0
            place += len(tokens) == 2  # longer than a row, so repeating it would never end


def _turn(dialogues: Dialogues, number: int, markers: Markers) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of a dialogue and of the opening of the next user turn, and a mask of the answer."""
    spoken = dialogues.of(number)
    ended = spoken[-1] == markers.end
    after = np.asarray(markers.turn if ended else (markers.end, *markers.turn), dtype=np.int64)
    counted = np.zeros(len(spoken) + len(after), dtype=bool)
    counted[dialogues.prompt[number] : len(spoken)] = True
    return np.concatenate((spoken, after)), counted


_COMMON = frozenset(
    "a about after all also an and any are as at be been but by can could did do does each explain for from give has have he her "
    "his how i if in into is it its let make may me more most my no not of on one only or our out please sentence sentences she "
    "should show so some step tell text than that the their them then there these they this three to translate two up us use was "
    "we were what when where which who why will with work would write you your summarise summarize function python short".split()
)
_STEM = 5
_ALIKE = 0.5
_INSIDE = 0.8
_GRAM = 8
_KEPT = 4
"""One 8-gram in this many is stored, which is enough to recognise a copy."""


def plain(text: str) -> str:
    """Return the words of ``text`` in lower case, without punctuation."""
    return " ".join(re.findall(r"\w+", text.lower()))


class Reserved:
    """Prompts that must not occur in training data, not even reworded or inside a longer text."""

    def __init__(self, prompts: Iterable[str]) -> None:
        self._prompts = [words for words in map(content, prompts) if words]

    def near(self, text: str) -> bool:
        """Whether ``text`` nearly repeats or contains one of the prompts."""
        words = content(text)
        for prompt in self._prompts:
            shared = len(words & prompt)
            if shared >= _ALIKE * len(words | prompt) or (len(prompt) > 2 and shared >= _INSIDE * len(prompt)):
                return True
        return False


def content(text: str) -> frozenset[str]:
    """Return the stems (first letters) of all words but the most common."""
    return frozenset(word[:_STEM] for word in plain(text).split() if word not in _COMMON)


class KnownTexts:
    """Detector of duplicate turns and answers."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()
        self._grams: set[int] = set()

    def times_asked(self, turn: str) -> int:
        """Count a use of ``turn`` and return the number of earlier uses, ignoring case and punctuation."""
        key = plain(turn)
        self._turns[key] += 1
        return self._turns[key] - 1

    def has_answer(self, question: Sequence[int], answer: Sequence[int]) -> bool:
        """Return whether earlier answers contain more than half of the answer's 8-grams, and store the answer if not.

        8-grams of the question do not count.
        """
        grams = _grams(answer) - _grams(question)
        twin = 2 * len(grams & self._grams) > len(grams)
        if not twin:
            self._grams |= grams
        return twin


def _grams(ids: Sequence[int]) -> set[int]:
    hashes = (hash(tuple(ids[place : place + _GRAM])) for place in range(len(ids) - _GRAM + 1))
    return {gram_hash for gram_hash in hashes if gram_hash % _KEPT == 0}


def dialogues_line(files: Sequence[Path], *more: str) -> str:
    """Return the line on training data for a model card: dialogue files and held-out share."""
    named = ", ".join(f"{file.name} sha256 {digest(file)}" for file in files)
    return "; ".join((f"{named}, one in {HELD_OUT_EVERY} held out", *more))
