"""Let a vision-language model answer many questions about many pictures at once, and say how right the answers are.

Axis names: ``row`` (a question about a picture), ``token``, ``hidden``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.training.decoding import Decoder, Request
from specviz.training.families import scenes
from specviz.training.families.scenes import held_out
from specviz.training.families.scenes_batches import Writer
from specviz.training.families.scenes_net import Learner
from specviz.training.families.scenes_words import Exchange, a, at, exchanges, named

_ROWS = 96
_ANSWER, _DESCRIPTION = 96, 200


def answers(
    learner: Learner, visual: Tensor, questions: Sequence[Sequence[int]], writer: Writer, limit: int,
    temperature: float = 0.0, generator: torch.Generator | None = None,
) -> list[list[int]]:  # fmt: skip
    """Answers without their end token. ``visual`` [row, visual, hidden] is what each row's question is about."""
    user = learner.model.get_input_embeddings().weight[writer.user][None].detach()
    requests = [
        Request((*question, writer.assistant), temperature, limit, number, torch.cat((user, picture.to(user.dtype))))
        for number, (question, picture) in enumerate(zip(questions, visual, strict=True))
    ]
    decoder = Decoder(learner.model, writer.end, (), (), min(_ROWS, len(requests)), max(map(len, requests)) + limit)
    found = {one.request.tag: list(one.answer) for one in decoder.run(requests, generator)}
    return [found[number][:-1] if found[number][-1] == writer.end else found[number] for number in range(len(requests))]


@dataclass(frozen=True)
class Answered:
    """One question, the reply to it, and whether it is right word for word: an answer's last sentence, since what it looked
    at before that is not what was asked for; a description as a whole."""

    number: int
    exchange: Exchange
    reply: str

    @property
    def right(self) -> bool:
        reply = _plain(self.reply)
        last = reply if self.exchange.kind == "describe" else re.split("[.?] ", reply.rstrip("."))[-1] + "."
        return last == _plain(self.exchange.answer)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def ask(learner: Learner, tokenizer: Any, kind: str, numbers: Sequence[int], questions: int) -> list[Answered]:
    """Descriptions and questions about held-out scenes of this kind."""
    writer = Writer(tokenizer)
    chosen = [held_out(kind, number) for number in numbers]
    device = learner.model.device
    with torch.no_grad():
        visual = learner.visual_tokens(torch.from_numpy(np.stack([scenes.draw(scene) for scene in chosen])).to(device))
    answered: list[Answered] = []
    for long in (True, False):
        placed_exchanges = [
            (place, exchange) for place, scene in enumerate(chosen) for exchange in _exchanges_of(scene, questions, long)
        ]
        if not placed_exchanges:
            continue
        ids = [writer.backend.encode(exchange.question, add_special_tokens=False).ids for _, exchange in placed_exchanges]
        limit = _DESCRIPTION if long else _ANSWER
        answer_rows = answers(learner, visual[[place for place, _ in placed_exchanges]], ids, writer, limit)
        texts = [tokenizer.decode(row, clean_up_tokenization_spaces=False) for row in answer_rows]
        answered += [
            Answered(numbers[place], exchange, text) for (place, exchange), text in zip(placed_exchanges, texts, strict=True)
        ]
    return answered


def _exchanges_of(scene: scenes.Scene, questions: int, long: bool) -> list[Exchange]:
    every = exchanges(scene, questions)
    return every[:1] if long else every[1:]


def figures(kind: str, answered: Sequence[Answered]) -> dict[str, float]:
    """Shares that are right: questions by kind and together; things of descriptions by name, with size, with place."""
    shares: dict[str, float] = {}
    short_answers = [answer for answer in answered if answer.exchange.kind != "describe"]
    for what in sorted({answer.exchange.kind for answer in short_answers}):
        shares[what] = float(np.mean([answer.right for answer in short_answers if answer.exchange.kind == what]))
    if short_answers:
        shares["questions"] = float(np.mean([answer.right for answer in short_answers]))
    described = [answer for answer in answered if answer.exchange.kind == "describe"]
    if described:
        counts = np.array([_things_right(held_out(kind, answer.number), answer.reply) for answer in described]).sum(0)
        shares |= {name: float(counts[place] / counts[3]) for place, name in enumerate(("object", "sized", "placed"))}
        shares["invented"] = float(counts[4] / max(1, counts[5]))
    return shares


_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"^(?P<where>(?:at|on|in) the [a-z ]+?) (?:there (?:is|are)|you can see) (?P<what>(?:an?|some) [a-z ]+)$",
        r"^(?P<what>(?:an?|some) [a-z ]+?) (?:is|are) (?P<where>(?:at|on|in) the [a-z ]+)$",
    )
)


def placed_things(text: str) -> list[tuple[str, str]]:
    """(what, where) of every thing that a description places."""
    things = []
    for sentence in text.lower().split("."):
        for form in _FORMS:
            match = form.match(sentence.strip())
            if match:
                things.append((match["what"], match["where"]))
                break
    return things


def _things_right(scene: scenes.Scene, text: str) -> tuple[int, int, int, int, int, int]:
    """Things named rightly, with their size too, with their place too; things there; things said that are not there; said."""
    described = placed_things(text)
    kinds, sized = Counter(_bare(what) for what, _ in described), Counter(what for what, _ in described)
    placed = Counter(described)
    truth = Counter(thing.kind for thing in scene.things)
    named_right = sum((kinds & truth).values())
    size_right = sum((sized & Counter(a(named(thing)) for thing in scene.things)).values())
    place_right = sum((placed & Counter((a(named(thing)), at(thing.region)) for thing in scene.things)).values())
    return named_right, size_right, place_right, len(scene.things), sum((kinds - truth).values()), len(described)


def _bare(what: str) -> str:
    """Without article and size."""
    words = what.split(" ")[1:]
    return " ".join(words[1:] if words and words[0] in scenes.SIZES else words)
