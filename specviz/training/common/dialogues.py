"""``train dialogues``: data for drafters, answers of the target to user turns of many kinds.

Turns come from templates (:mod:`specviz.training.common.turns`); where they are about a text, it is one that the target has
written before, or another template's. Some turns the target writes itself, and some follow one of its answers. It
answers at temperature 0, 0.3, 0.7 or 1, many at once; an answer that goes round in circles is cut. On a processor the hidden
states it had while writing go to the feature store, so that no recipe need have it read them again.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from specviz.training.common import data
from specviz.training.common.decoding import Decoder, Finished, Request
from specviz.training.common.features import store_for
from specviz.training.common.known import KnownTexts, Reserved
from specviz.training.common.target_assets import TargetAssets, target_assets
from specviz.training.common.turns import KINDS, TURNS, Writer
from specviz.training.registry import Job

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
HELD_OUT_TEMPERATURES = (0.0, 0.0, 0.0, 1.0)
"""A greedy answer tells what drafting along it would bring; of held-out ones there should be more."""
LONGEST_TURN = 320
LONGEST_OWN_TURN = 80
SHORTEST_OWN_TURN = 3
LONGEST_ANSWER = 256
PASSAGE_WORDS = (30, 110)
PASSAGES = 4000
SOURCES = ("chat", "question answering", "stories", "unprompted")
"""Kinds whose answers are texts one can ask about."""
HELD_OUT_EVERY = 20
"""No number of kinds in a round divides it, so that all kinds are held out."""
SAVED_EVERY = 300.0
"""Seconds between two writings of the file."""


@dataclass(frozen=True)
class Dialogue:
    """One question (earlier turns and the separator behind it included) and one answer, as ids."""

    question: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float
    kind: str = KINDS[-1]
    held_out: bool = False


@dataclass(frozen=True)
class _Plan:
    """What a request is for. ``asks``: what comes back is a user turn, to be answered next."""

    kind: str
    held_out: bool
    asks: bool = False


def make(job: Job) -> None:
    """Write dialogues until the minutes are over; ``resume`` adds to the file there is, else it is written anew."""
    path = data.place(job.data)
    assets = target_assets(job.device)
    if assets.target.device.type == "cpu":
        torch.set_num_threads(1)
    made = list(dialogues_of(data.read(path))) if job.resume and path.is_file() else []
    # Several processes may write, each its own file: with another name or length other turns are drawn.
    seed = zlib.crc32(f"{path.name} {len(made)}".encode())
    author = Author(assets, made, Reserved(job.reserved), seed)
    store = store_for(assets.target.model, assets.target.name, packed(made), assets.markers)
    rows = 256 if assets.target.device.type == "cuda" else 64
    longest = len(assets.markers.prefix) + LONGEST_TURN + LONGEST_ANSWER + 1
    decoder = Decoder(assets.target.model, assets.markers.end, assets.markers.prefix, store.taps, rows, longest)
    generator = torch.Generator(assets.target.device).manual_seed(seed)
    until, saved = time.monotonic() + 60 * job.minutes, time.monotonic()
    for finished in decoder.run(author.requests(until), generator):
        if author.take(finished):
            store.put((*author.made[-1].question, *author.made[-1].answer), finished.features.cpu())
        if time.monotonic() - saved > SAVED_EVERY:
            _save(path, author)
            saved = time.monotonic()
    _save(path, author)


def _save(path: Path, author: Author) -> None:
    data.write(path, packed(author.made))
    kinds = Counter(one.kind for one in author.made)
    tokens = sum(len(one.answer) for one in author.made)
    print(
        time.strftime("%H:%M:%S"), f"{len(author.made)} dialogues, {tokens} answer tokens, dropped {dict(author.dropped)};",
        ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS), flush=True,
    )  # fmt: skip


class Author:
    """Decides what the target is asked next and which of its answers are kept, in ``made``."""

    def __init__(self, assets: TargetAssets, made: list[Dialogue], reserved: Reserved, seed: int = 0) -> None:
        self.made = made
        self.dropped: Counter[str] = Counter()
        self._assets, self._reserved, self._known = assets, reserved, KnownTexts()
        self._generator = random.Random(seed)
        self._asked = len(made)
        self._own: deque[Request] = deque()
        self._passages: dict[bool, list[str]] = {False: [], True: []}
        self._writers = {side: Writer(self._generator, side, partial(self._passage, side)) for side in (False, True)}
        for dialogue in made:
            self._known.has_turn(self._text(dialogue.question))
            self._known.has_answer(dialogue.question, dialogue.answer)
            self._learn(dialogue)

    def requests(self, until: float) -> Iterator[Request]:
        """Endless requests, until this moment of the monotonic clock."""
        while time.monotonic() < until:
            if self._own:
                yield self._own.popleft()
                continue
            kind = TURNS[self._asked % len(TURNS)]
            found = self._next(_Plan(kind, self._asked % HELD_OUT_EVERY == HELD_OUT_EVERY - 1))
            self._asked += 1
            if found is not None:
                yield found

    def _next(self, plan: _Plan) -> Request | None:
        """A request of this plan, None where nothing new came of it."""
        writer = self._writers[plan.held_out]
        if plan.kind == "unprompted":
            return Request(self._ids(writer.fill("{opening}")), 1.0, LONGEST_OWN_TURN, _Plan("unprompted", plan.held_out, True))
        before: tuple[int, ...] = ()
        if plan.kind == "multi-turn":
            earlier = self._earlier(plan.held_out)
            if earlier is None:
                return None
            before = (*earlier.question, *earlier.answer, *self._assets.markers.turn)
            text = writer.following()
        else:
            text = writer.turn(plan.kind)
        return self._answer(before, self._ids(text), plan)

    def _answer(self, before: tuple[int, ...], turn: Sequence[int], plan: _Plan) -> Request | None:
        """The request for an answer to a turn, unless it is too long, was asked before, or is near a reserved one."""
        question = (*before, *turn, *self._assets.answer)
        reason = ""
        if len(question) > LONGEST_TURN:
            reason = "long"
        elif self._reserved.near(self._text(turn)):
            reason = "reserved"
        elif self._known.has_turn(self._text(question)):
            reason = "asked before"
        if reason:
            self.dropped[reason] += 1
            return None
        temperatures = HELD_OUT_TEMPERATURES if plan.held_out else TEMPERATURES
        return Request(question, self._generator.choice(temperatures), LONGEST_ANSWER, plan)

    def take(self, finished: Finished) -> bool:
        """Keep an answer, or ask what the target has thought of. Says whether there is one dialogue more."""
        plan, request, end = finished.request.tag, finished.request, self._assets.markers.end
        if plan.asks:
            turn = (*request.ids, *finished.answer[:-1])
            if finished.answer[-1] == end and not finished.looped and len(turn) >= SHORTEST_OWN_TURN:
                found = self._answer((), turn, _Plan(plan.kind, plan.held_out))
                self._own.extend([found] if found is not None else [])
            return False
        if self._known.has_answer(request.ids, finished.answer):
            self.dropped["said before"] += 1
            return False
        self.made.append(Dialogue(request.ids, finished.answer, request.temperature, plan.kind, plan.held_out))
        self._learn(self.made[-1])
        return True

    def _learn(self, dialogue: Dialogue) -> None:
        """Paragraphs of an answer that one can ask about later."""
        if dialogue.kind not in SOURCES or dialogue.answer[-1] != self._assets.markers.end:
            return
        least, most = PASSAGE_WORDS
        kept = self._passages[dialogue.held_out]
        for paragraph in self._text(dialogue.answer[:-1]).split("\n\n"):
            if least <= len(paragraph.split()) <= most and paragraph.rstrip()[-1:] in '.!?"':
                kept.append(paragraph.strip())
        if len(kept) > PASSAGES:
            del kept[: len(kept) - PASSAGES]

    def _passage(self, held_out: bool) -> str | None:
        kept = self._passages[held_out]
        return self._generator.choice(kept) if kept else None

    def _earlier(self, held_out: bool) -> Dialogue | None:
        """A dialogue that came to its end and leaves room for another turn, on the same side; a few are looked at."""
        for _ in range(40 if self.made else 0):
            one = self._generator.choice(self.made)
            room = len(one.question) + len(one.answer) < LONGEST_TURN - 60
            if one.held_out == held_out and room and one.answer[-1] == self._assets.markers.end:
                return one
        return None

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._assets.target.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._assets.target.tokenizer.decode(list(ids)))


def answers(assets: TargetAssets, asked: Sequence[tuple[int, ...]], temperature: float, longest: int) -> list[Dialogue]:
    """The target's answers to these questions, in their order."""
    places = len(assets.markers.prefix) + max(map(len, asked)) + longest + 1
    decoder = Decoder(assets.target.model, assets.markers.end, assets.markers.prefix, (1,), len(asked), places)
    requests = [Request(question, temperature, longest, number) for number, question in enumerate(asked)]
    found = {one.request.tag: one.answer for one in decoder.run(requests)}
    return [Dialogue(question, found[number], temperature) for number, question in enumerate(asked)]


def packed(made: Sequence[Dialogue]) -> data.Dialogues:
    """Dialogues as arrays."""
    length = [len(one.question) + len(one.answer) for one in made]
    return data.Dialogues(
        tokens=np.array([token for one in made for token in (*one.question, *one.answer)], dtype=np.int64),
        starts=np.concatenate(([0], np.cumsum(length))).astype(np.int64),
        prompt=np.array([len(one.question) for one in made], dtype=np.int64),
        temperature=np.array([one.temperature for one in made], dtype=np.float32),
        kind=np.array([KINDS.index(one.kind) for one in made], dtype=np.int64),
        held_out=np.array([one.held_out for one in made], dtype=bool),
    )


def dialogues_of(stored: data.Dialogues) -> Iterator[Dialogue]:
    """Arrays as dialogues; those of a file without kinds are the target's own turns, none held out."""
    for number in range(len(stored)):
        tokens, asked = stored.of(number).tolist(), int(stored.prompt[number])
        one = Dialogue(tuple(tokens[:asked]), tuple(tokens[asked:]), float(stored.temperature[number]))
        if stored.kind is not None and stored.held_out is not None:
            one = replace(one, kind=KINDS[int(stored.kind[number])], held_out=bool(stored.held_out[number]))
        yield one
