"""``train dialogues``: data for drafters, answers of the target to user turns of many kinds.

Turns come from templates (:mod:`specviz.training.phrases`); where they are about a text, it is one that the target has
written before, or another template's. Some turns the target writes itself, and some follow one of its answers. It
answers at temperature 0, 0.3, 0.7 or 1, many at once; an answer that goes round in circles is cut. On a processor the hidden
states it had while writing go to the feature store, so that no recipe need have it read them again.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from specviz.errors import BadInput
from specviz.training import data, driver
from specviz.training.data import KnownTexts, Reserved
from specviz.training.decoding import Decoder, Finished, Request
from specviz.training.features import TargetAssets, store_for, target_assets
from specviz.training.phrases import KINDS, Writer, phrases
from specviz.training.registry import Job

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
HELD_OUT_TEMPERATURES = (0.0, 0.0, 0.0, 1.0)
"""A greedy answer tells what drafting along it would bring; of held-out ones there should be more."""
WARM = (0.7, 1.0)
ASKED_AGAIN = 3
"""How often a turn is asked again, warmer than the first time, for another answer: templates of some kinds are soon used up."""
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
    """Write dialogues until the minutes are over; ``resume`` adds to the file there is, else it is written anew.

    Of several files the first is written; those of the others, which other processes wrote, are taken over unless they are
    near-duplicates.
    """
    path, others = data.place(*job.data[:1]), data.find(job.data[1:]) if len(job.data) > 1 else []
    if path in others:
        raise BadInput(f"{path.name} is to be written: name it once with --data.")
    assets = target_assets(job.device)
    if assets.target.device.type == "cpu":
        torch.set_num_threads(1)
    dialogues = list(dialogues_of(data.read(path))) if job.resume and path.is_file() else []
    # Several processes may write, each its own file: with another name or length other turns are drawn.
    seed = zlib.crc32(f"{path.name} {len(dialogues)}".encode())
    author = Author(assets, dialogues, Reserved(job.reserved), seed)
    for other in others:
        author.take_over(dialogues_of(data.read(other)))
    store = store_for(assets.target.model, assets.target.name, packed(dialogues), assets.markers)
    rows = 1024 if assets.target.device.type == "cuda" else 192
    longest = len(assets.markers.prefix) + LONGEST_TURN + LONGEST_ANSWER + 1
    taps = store.taps if store.keeps else ()
    decoder = Decoder(assets.target.model, assets.markers.end, assets.markers.prefix, taps, rows, longest)
    generator = torch.Generator(assets.target.device).manual_seed(seed)
    until, saved = time.monotonic() + 60 * job.minutes, time.monotonic()
    for finished in decoder.run(author.requests(until), generator):
        if author.take(finished) and store.keeps:
            store.put((*author.dialogues[-1].question, *author.dialogues[-1].answer), finished.features.cpu())
        if time.monotonic() - saved > SAVED_EVERY:
            _save(path, author)
            saved = time.monotonic()
    _save(path, author)


def _save(path: Path, author: Author) -> None:
    data.write(path, packed(author.dialogues))
    kinds = Counter(dialogue.kind for dialogue in author.dialogues)
    tokens = sum(len(dialogue.answer) for dialogue in author.dialogues)
    told = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS)
    driver.say(f"{len(author.dialogues)} dialogues, {tokens} answer tokens, dropped {dict(author.dropped)}; {told}")


class Author:
    """Decides what the target is asked next and which of its answers are kept, in ``dialogues``."""

    def __init__(self, assets: TargetAssets, dialogues: list[Dialogue], reserved: Reserved, seed: int = 0) -> None:
        self.dialogues = dialogues
        self.dropped: Counter[str] = Counter()
        self._assets, self._reserved, self._known = assets, reserved, KnownTexts()
        self._generator = random.Random(seed)
        self._asked = len(dialogues)
        self._own: deque[Request] = deque()
        self._passages: dict[bool, list[str]] = {False: [], True: []}
        self._writers = {side: Writer(self._generator, side, partial(self._passage, side)) for side in (False, True)}
        for dialogue in dialogues:
            self._known.times_asked(self._text(dialogue.question))
            self._known.has_answer(dialogue.question, dialogue.answer)
            self._learn(dialogue)

    def requests(self, until: float) -> Iterator[Request]:
        """Endless requests, until this moment of the monotonic clock."""
        order = phrases("turns")["order"]
        while time.monotonic() < until:
            if self._own:
                yield self._own.popleft()
                continue
            kind = order[self._asked % len(order)]
            request = self._next(_Plan(kind, self._asked % HELD_OUT_EVERY == HELD_OUT_EVERY - 1))
            self._asked += 1
            if request is not None:
                yield request

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
        elif (asked := self._known.times_asked(self._text(question))) > (0 if plan.held_out else ASKED_AGAIN):
            reason = "asked before"
        if reason:
            self.dropped[reason] += 1
            return None
        temperatures = HELD_OUT_TEMPERATURES if plan.held_out else WARM if asked else TEMPERATURES
        return Request(question, self._generator.choice(temperatures), LONGEST_ANSWER, plan)

    def take(self, finished: Finished) -> bool:
        """Keep an answer, or ask what the target has thought of. Says whether there is one dialogue more."""
        plan, request, end = finished.request.tag, finished.request, self._assets.markers.end
        if plan.asks:
            turn = (*request.ids, *finished.answer[:-1])
            if finished.answer[-1] == end and not finished.looped and len(turn) >= SHORTEST_OWN_TURN:
                next_request = self._answer((), turn, _Plan(plan.kind, plan.held_out))
                self._own.extend([next_request] if next_request is not None else [])
            return False
        if self._known.has_answer(request.ids, finished.answer):
            self.dropped["said before"] += 1
            return False
        self.dialogues.append(Dialogue(request.ids, finished.answer, request.temperature, plan.kind, plan.held_out))
        self._learn(self.dialogues[-1])
        return True

    def take_over(self, dialogues: Iterable[Dialogue]) -> None:
        """Keep those that another process wrote, as if they had been asked for here."""
        for dialogue in dialogues:
            asked = self._known.times_asked(self._text(dialogue.question))
            if asked > (0 if dialogue.held_out else ASKED_AGAIN):
                self.dropped["asked before"] += 1
            elif self._known.has_answer(dialogue.question, dialogue.answer):
                self.dropped["said before"] += 1
            else:
                self.dialogues.append(dialogue)
                self._learn(dialogue)

    def _learn(self, dialogue: Dialogue) -> None:
        """Paragraphs of an answer that one can ask about later."""
        if dialogue.kind not in SOURCES or dialogue.answer[-1] != self._assets.markers.end:
            return
        least, most = PASSAGE_WORDS
        passages = self._passages[dialogue.held_out]
        for paragraph in self._text(dialogue.answer[:-1]).split("\n\n"):
            if least <= len(paragraph.split()) <= most and paragraph.rstrip()[-1:] in '.!?"':
                passages.append(paragraph.strip())
        if len(passages) > PASSAGES:
            del passages[: len(passages) - PASSAGES]

    def _passage(self, held_out: bool) -> str | None:
        passages = self._passages[held_out]
        return self._generator.choice(passages) if passages else None

    def _earlier(self, held_out: bool) -> Dialogue | None:
        """A dialogue that came to its end and leaves room for another turn, on the same side; a few are looked at."""
        for _ in range(40 if self.dialogues else 0):
            dialogue = self._generator.choice(self.dialogues)
            room = len(dialogue.question) + len(dialogue.answer) < LONGEST_TURN - 60
            if dialogue.held_out == held_out and room and dialogue.answer[-1] == self._assets.markers.end:
                return dialogue
        return None

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._assets.target.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._assets.target.tokenizer.decode(list(ids)))


def answers(assets: TargetAssets, questions: Sequence[tuple[int, ...]], temperature: float, longest: int) -> list[Dialogue]:
    """The target's answers to these questions, in their order."""
    places = len(assets.markers.prefix) + max(map(len, questions)) + longest + 1
    decoder = Decoder(assets.target.model, assets.markers.end, assets.markers.prefix, (1,), len(questions), places)
    requests = [Request(question, temperature, longest, number) for number, question in enumerate(questions)]
    answer_by_number = {finished.request.tag: finished.answer for finished in decoder.run(requests)}
    return [Dialogue(question, answer_by_number[number], temperature) for number, question in enumerate(questions)]


def packed(dialogues: Sequence[Dialogue]) -> data.Dialogues:
    """Dialogues as arrays."""
    length = [len(dialogue.question) + len(dialogue.answer) for dialogue in dialogues]
    return data.Dialogues(
        tokens=np.array([token for dialogue in dialogues for token in (*dialogue.question, *dialogue.answer)], dtype=np.int64),
        starts=np.concatenate(([0], np.cumsum(length))).astype(np.int64),
        prompt=np.array([len(dialogue.question) for dialogue in dialogues], dtype=np.int64),
        temperature=np.array([dialogue.temperature for dialogue in dialogues], dtype=np.float32),
        kind=np.array([KINDS.index(dialogue.kind) for dialogue in dialogues], dtype=np.int64),
        held_out=np.array([dialogue.held_out for dialogue in dialogues], dtype=bool),
    )


def dialogues_of(stored: data.Dialogues) -> Iterator[Dialogue]:
    """Arrays as dialogues; those of a file without kinds are the target's own turns, none held out."""
    for number in range(len(stored)):
        tokens, prompt_length = stored.of(number).tolist(), int(stored.prompt[number])
        dialogue = Dialogue(tuple(tokens[:prompt_length]), tuple(tokens[prompt_length:]), float(stored.temperature[number]))
        if stored.kind is not None and stored.held_out is not None:
            dialogue = replace(dialogue, kind=KINDS[int(stored.kind[number])], held_out=bool(stored.held_out[number]))
        yield dialogue
