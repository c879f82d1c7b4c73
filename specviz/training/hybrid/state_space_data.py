"""Text for the state-space recipes: SmolLM2's calmer dialogues, a small tokenizer made on them, rows without padding.

Answers drawn at temperature 1 and answers that loop are left out, and one that was cut ends at its last whole sentence:
a network of three million weights learns to write from text that stays simple and comes to an end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from specviz.training.common import data

START = "<|im_start|>"
END = "<|im_end|>"
OPENING = f"{START}user\n"
VOCABULARY = 2048
HOTTEST = 0.8
LOOPING = 0.6
LONGEST = 360


@dataclass(frozen=True)
class Texts:
    """Dialogues as text, the ones to learn from and the ones kept out; each starts with ``OPENING``."""

    training: list[str]
    held_out: list[str]


@dataclass(frozen=True)
class Corpus:
    """The same as token ids."""

    training: list[np.ndarray]
    held_out: list[np.ndarray]


def texts(dialogues: data.Dialogues, tokenizer: object) -> Texts:
    """The usable dialogues, read with the tokenizer they were written in."""
    training, held_out = data.split(dialogues)
    parts = ([_text(dialogues, number, tokenizer) for number in part] for part in (training, held_out))
    return Texts(*([text for text in part if text] for part in parts))


def _text(dialogues: data.Dialogues, number: int, tokenizer: object) -> str:
    """One dialogue with its turns marked, empty where it is of no use here."""
    answer = dialogues.answer(number)
    if dialogues.temperature[number] > HOTTEST or loops(answer):
        return ""
    spoken = tokenizer.decode(dialogues.of(number).tolist())  # type: ignore[attr-defined]
    if not spoken.endswith(END):
        question, separator, reply = spoken.rpartition(f"{START}assistant\n")
        reply = reply[: 1 + max(reply.rfind(mark) for mark in ".!?")]
        if len(reply) < 40:
            return ""
        spoken = f"{question}{separator}{reply}{END}"
    return f"{OPENING}{spoken}\n"


def loops(answer: Sequence[int]) -> bool:
    """Whether fewer than six in ten of an answer's runs of four tokens are different ones."""
    runs = [tuple(answer[place : place + 4]) for place in range(len(answer) - 3)]
    return bool(runs) and len(set(runs)) < LOOPING * len(runs)


def small_tokenizer(training: Sequence[str], size: int = VOCABULARY) -> Tokenizer:
    """Byte-level pairs on the training text alone, with the chat template's two markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        training,
        trainers.BpeTrainer(vocab_size=size, special_tokens=[START, END], initial_alphabet=alphabet, show_progress=False),
    )
    return tokenizer


def corpus(dialogue_texts: Texts, tokenizer: Tokenizer) -> Corpus:
    """Both parts as ids."""
    return Corpus(*(_ids(part, tokenizer) for part in (dialogue_texts.training, dialogue_texts.held_out)))


def _ids(part: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    return [np.asarray(encoding.ids[:LONGEST], dtype=np.int64) for encoding in tokenizer.encode_batch(list(part))]


def rows(spoken: Sequence[np.ndarray], length: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Endless rows of ``length + 1`` tokens, each opening with the start of a dialogue, shuffled each time round.

    A dialogue that the end of a row cut off opens the next one.
    """
    waiting: list[np.ndarray] = []
    filled = 0
    while True:
        for number in generator.permutation(len(spoken)):
            waiting.append(spoken[number])
            filled += len(spoken[number])
            if filled > length:
                yield np.concatenate(waiting)[: length + 1]
                again = len(waiting) > 1
                waiting, filled = ([spoken[number]], len(spoken[number])) if again else ([], 0)
