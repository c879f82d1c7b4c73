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
from transformers import DynamicCache

from specviz.engine.cache import CACHE_ARGUMENT
from specviz.training.vision import scenes
from specviz.training.vision.scene_batches import Writer, exchanges, held_out
from specviz.training.vision.scene_names import Exchange, a, at, named
from specviz.training.vision.scenes_model import Learner

_ROWS = 96
_ANSWER, _DESCRIPTION = 96, 200


@torch.no_grad()
def answers(
    learner: Learner, visual: Tensor, questions: Sequence[Sequence[int]], writer: Writer, limit: int,
    temperature: float = 0.0, generator: torch.Generator | None = None,
) -> list[list[int]]:  # fmt: skip
    """Answers without their end token. ``visual`` [row, visual, hidden] is what each row's question is about."""
    answer_ids: list[list[int]] = []
    for start in range(0, len(questions), _ROWS):
        part = slice(start, start + _ROWS)
        answer_ids += _answered(learner, visual[part], questions[part], writer, limit, temperature, generator)
    return answer_ids


def _answered(
    learner: Learner, visual: Tensor, questions: Sequence[Sequence[int]], writer: Writer, limit: int,
    temperature: float, generator: torch.Generator | None,
) -> list[list[int]]:  # fmt: skip
    text, head = learner.model.model.text_model, learner.model.lm_head
    width = max(map(len, questions)) + 1
    tokens = torch.tensor([[*question, writer.assistant] + [writer.end] * (width - 1 - len(question)) for question in questions])
    real = torch.tensor([[1] * (len(question) + 1) + [0] * (width - 1 - len(question)) for question in questions])
    rows, prefix_length = tokens.shape[0], visual.shape[1] + 1
    tokens, real = (
        tokens.to(visual.device),
        torch.cat((torch.ones(rows, prefix_length, dtype=torch.long), real), 1).to(visual.device),
    )
    user = text.embed_tokens(torch.full((rows, 1), writer.user, device=visual.device))
    embedded = torch.cat((user, visual.to(user.dtype), text.embed_tokens(tokens)), dim=1)
    places = (real.cumsum(1) - 1).clamp_min(0)
    cache, ended, tokens_by_step = DynamicCache(), torch.zeros(rows, dtype=torch.bool, device=visual.device), []
    last = real.sum(1) - 1
    passed = text(inputs_embeds=embedded, attention_mask=real, position_ids=places, **{CACHE_ARGUMENT: cache}, use_cache=True)
    hidden = passed.last_hidden_state[torch.arange(rows), last]
    for step in range(limit):
        token = _chosen(head(hidden).float(), temperature, generator)
        token = torch.where(ended, writer.end, token)
        tokens_by_step.append(token)
        ended |= token == writer.end
        if bool(ended.all()):
            break
        real = torch.cat((real, torch.ones_like(real[:, :1])), 1)
        passed = text(
            inputs_embeds=text.embed_tokens(token[:, None]), attention_mask=real, position_ids=(last + 1 + step)[:, None],
            **{CACHE_ARGUMENT: cache}, use_cache=True,
        )  # fmt: skip
        hidden = passed.last_hidden_state[:, -1]
    token_rows = torch.stack(tokens_by_step, 1).tolist()
    return [row[: row.index(writer.end)] if writer.end in row else row for row in token_rows]


def _chosen(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]


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
