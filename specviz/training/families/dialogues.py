"""``train dialogues``: training data for drafters, the target's answers to user turns of many kinds.

Most turns come from templates (:mod:`specviz.training.phrases`), with passages from earlier answers. The target writes some turns
itself, and some turns continue a dialogue. Many turns are answered at once, at temperature 0, 0.3, 0.7 or 1; an answer that
repeats itself is cut short. On a CPU, the feature store keeps the hidden states of decoding.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from specviz.training import data, driver
from specviz.training.data import HELD_OUT_EVERY, Dialogue, KnownTexts, Reserved
from specviz.training.decoding import Decoder, Finished, Request
from specviz.training.features import TargetAssets, store_for, target_assets
from specviz.training.phrases import KINDS, Writer, phrases
from specviz.training.registry import Job

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
HELD_OUT_TEMPERATURES = (0.0, 0.0, 0.0, 1.0)
"""Mostly greedy, since metrics are measured on held-out greedy answers."""
WARM = (0.7, 1.0)
ASKED_AGAIN = 3
"""Maximum number of repeats of a turn, since some kinds have few templates. Repeats use the temperatures ``WARM``."""
LONGEST_TURN = 320
LONGEST_OWN_TURN = 80
SHORTEST_OWN_TURN = 3
LONGEST_ANSWER = 256
PASSAGE_WORDS = (30, 110)
PASSAGES = 4000
SOURCES = ("chat", "question answering", "stories", "unprompted")
"""Kinds with answers that serve as passages for later turns."""
SAVED_EVERY = 300.0
"""Seconds between saves."""


class _Plan(NamedTuple):
    """Purpose of a request. ``asks``: whether the result is a user turn, to be answered next."""

    kind: str
    held_out: bool
    asks: bool = False


def make(job: Job) -> None:
    """Generate dialogues until the time is up. ``job.resume``: extend the existing file instead of replacing it."""
    path, assets = data.place(*job.data), target_assets(job.device)
    target, markers = assets.target, assets.markers
    if target.device.type == "cpu":
        torch.set_num_threads(1)
    dialogues = list(data.dialogues_of(data.read(path))) if job.resume and path.is_file() else []
    # Several processes may write a file each, so the seed depends on the file's name and length.
    seed = zlib.crc32(f"{path.name} {len(dialogues)}".encode())
    author = Author(assets, dialogues, Reserved(job.reserved), seed)
    store = store_for(target.model, target.name, data.packed(dialogues), markers)
    rows, longest = 1024 if target.device.type == "cuda" else 192, len(markers.prefix) + LONGEST_TURN + LONGEST_ANSWER + 1
    decoder = Decoder(target.model, markers.end, markers.prefix, store.taps if store.keeps else (), rows, longest)
    generator, saved = torch.Generator(target.device).manual_seed(seed), time.monotonic()
    for finished in decoder.run(author.requests(saved + 60 * job.minutes), generator):
        if author.take(finished) and store.keeps:
            store.put((*author.dialogues[-1].question, *author.dialogues[-1].answer), finished.features.cpu())
        if time.monotonic() - saved > SAVED_EVERY:
            _save(path, author)
            saved = time.monotonic()
    _save(path, author)


def _save(path: Path, author: Author) -> None:
    data.write(path, data.packed(author.dialogues))
    kinds = Counter(dialogue.kind for dialogue in author.dialogues)
    tokens = sum(len(dialogue.answer) for dialogue in author.dialogues)
    counts = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS)
    driver.say(f"{len(author.dialogues)} dialogues, {tokens} answer tokens, dropped {dict(author.dropped)}; {counts}")


class Author:
    """Source of requests for the target, and filter for the answers, which are collected in ``dialogues``."""

    def __init__(self, assets: TargetAssets, dialogues: list[Dialogue], reserved: Reserved, seed: int = 0) -> None:
        self.dialogues = dialogues
        self.dropped: Counter[str] = Counter()
        self._assets, self._reserved, self._known = assets, reserved, KnownTexts()
        self._generator = random.Random(seed)
        self._asked = len(dialogues)
        self._own: deque[Request] = deque()
        self._passages = {side: deque[str](maxlen=PASSAGES) for side in (False, True)}
        self._writers = {side: Writer(self._generator, side, partial(self._passage, side)) for side in (False, True)}
        for dialogue in dialogues:
            self._known.times_asked(self._text(dialogue.question))
            self._known.has_answer(dialogue.question, dialogue.answer)
            self._learn(dialogue)

    def requests(self, until: float) -> Iterator[Request]:
        """Yield requests until the monotonic clock reaches ``until``."""
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
        """Return a request for ``plan``; None if the turn is unusable or there is no dialogue to continue."""
        writer, before = self._writers[plan.held_out], tuple[int, ...]()
        if plan.kind == "unprompted":
            return Request(self._ids(writer.fill("{opening}")), 1.0, LONGEST_OWN_TURN, plan._replace(asks=True))
        if plan.kind == "multi-turn":
            earlier = self._earlier(plan.held_out)
            if not earlier:
                return None
            before = (*earlier.question, *earlier.answer, *self._assets.markers.turn)
        return self._answer(before, self._ids(writer.follow_up() if before else writer.turn(plan.kind)), plan)

    def _answer(self, before: tuple[int, ...], turn: Sequence[int], plan: _Plan) -> Request | None:
        """Return a request to answer ``turn`` after ``before``; None if the turn is too long, too frequent or reserved."""
        question = (*before, *turn, *self._assets.answer)
        if len(question) > LONGEST_TURN:
            self.dropped["long"] += 1
        elif self._reserved.near(self._text(turn)):
            self.dropped["reserved"] += 1
        elif (asked := self._known.times_asked(self._text(question))) > (0 if plan.held_out else ASKED_AGAIN):
            self.dropped["asked before"] += 1
        else:
            temperatures = HELD_OUT_TEMPERATURES if plan.held_out else WARM if asked else TEMPERATURES
            return Request(question, self._generator.choice(temperatures), LONGEST_ANSWER, plan)
        return None

    def take(self, finished: Finished) -> bool:
        """Store an answer, or queue a turn that the target wrote. Returns whether a dialogue was added."""
        plan, request, end = finished.request.tag, finished.request, self._assets.markers.end
        if plan.asks:
            turn = (*request.ids, *finished.answer[:-1])
            whole = finished.answer[-1] == end and not finished.looped and len(turn) >= SHORTEST_OWN_TURN
            following = self._answer((), turn, plan._replace(asks=False)) if whole else None
            self._own.extend([following] if following is not None else [])
            return False
        if self._known.has_answer(request.ids, finished.answer):
            self.dropped["said before"] += 1
            return False
        self.dialogues.append(Dialogue(request.ids, finished.answer, request.temperature, plan.kind, plan.held_out))
        self._learn(self.dialogues[-1])
        return True

    def _learn(self, dialogue: Dialogue) -> None:
        """Store paragraphs of suitable length as passages for later turns."""
        if dialogue.kind not in SOURCES or dialogue.answer[-1] != self._assets.markers.end:
            return
        least, most = PASSAGE_WORDS
        for paragraph in self._text(dialogue.answer[:-1]).split("\n\n"):
            if least <= len(paragraph.split()) <= most and paragraph.rstrip()[-1:] in '.!?"':
                self._passages[dialogue.held_out].append(paragraph.strip())

    def _passage(self, held_out: bool) -> str | None:
        passages = self._passages[held_out]
        return self._generator.choice(passages) if passages else None

    def _earlier(self, held_out: bool) -> Dialogue | None:
        """Return a random dialogue on the same side of the split with room for another turn; None after 40 failed draws."""
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
