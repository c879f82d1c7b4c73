"""Text about scenes from a grammar with many forms, and batches of scenes with dense labels.

Facts are exact; the wording is random, from ``assets/phrases/scenes.toml``. Questions are only about things with a unique name in
the scene.

A *look* lists everything in a scene. A *drill* is a look with very short questions, each of which needs a lookup in the look. The
model must learn to match names, which takes many examples; drills have a lookup every four tokens, sentences every twenty.

A row has a prefix, the user's marker and the visual tokens, and then several conversations: the description and short questions.
Conversations do not attend to each other. The picture is thus encoded only once.
Axis names: ``scene``, ``visual`` (tokens of the picture), ``token``, ``question``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.models.vision.scenes import ASSISTANT, END, IMAGE, NOTHING_KNOWN, SPECIAL, USER, tokenizer_from
from specviz.training.data import IGNORED
from specviz.training.families import scenes
from specviz.training.families.scenes import NAMES, REGIONS, SHAPES, Scene, Thing, overlapping
from specviz.training.phrases import byte_pairs, capital, phrases, sentence

_DATA = phrases("scenes")
NUMBERS, DESCRIBE = _DATA["numbers"], _DATA["describe"]
MIXED, LESSONS, READING = _DATA["mixed"], _DATA["lessons"], _DATA["reading"]
"""Frequencies of kinds of questions: by default, in training, and without a picture."""
_LOOKED = {"where", "count", "side", "next"}
"""Kinds of questions with answers that begin with a look."""
_SIDE_BY_SIDE = 14
"""Minimum offset in pixels for one thing to count as left of or above another."""
_DRILLED = {"where": 0.2, "count": 0.15, "there": 0.15, "side": 0.2, "next": 0.3}
"""Frequencies of kinds of questions in a drill."""
_BEGINNING = 3
"""Number of tokens of a look with labels in every conversation: enough to learn when to begin with a look."""
_ABSENT = 0.08
"""Share of questions about a thing that is not there."""
_DRILLS = 0.7
"""Share of drills among pages."""
KINDS = (*NAMES, *SHAPES)
HEADS = {"kind": len(KINDS) + 1, "colour": len(scenes.COLOURS) + 1, "size": len(scenes.SIZES) + 1, "region": 10}
"""Number of classes by dense label; class 0 is an empty patch or no colour."""


@dataclass(frozen=True)
class Exchange:
    """A question with an answer. ``kind``: describe, what, where, count, colour, side or next.

    ``look``: list of all things with their places, spoken before the answer. Names are easier to find, count and compare in
    text than in the picture. ``again``: word of the question, repeated before the answer so that the model can look the word
    up. The word is in lower case, because a capitalised word is a different token.
    """

    kind: str
    question: str
    answer: str
    look: str = ""
    again: str = ""

    @property
    def spoken(self) -> str:
        """Whole reply: look, repeated word, answer."""
        return " ".join(part for part in (self.look, self.again, self.answer) if part)


def at(region: int) -> str:
    """Return a phrase such as "at the top left" or "in the middle"."""
    place = REGIONS[region]
    return f"{'in' if place == 'middle' else 'on' if place in {'left', 'right'} else 'at'} the {place}"


def plural(name: str, count: int) -> str:
    """Return the plural of ``name``, or the singular for a count of one."""
    if count == 1 or name in {"fish", "sheep", "grapes"}:
        return name
    if name.endswith("y") and name[-2] not in "aeiou":
        return name[:-1] + "ies"
    return name + ("es" if name.endswith(("s", "x", "ch")) else "s")


def many(count: int, name: str) -> str:
    """Return a phrase such as "no cats", "one cat" or "two cats"."""
    return f"{NUMBERS[count]} {plural(name, count)}"


def named(thing: Thing) -> str:
    """Return size, colour and name of a thing, without an article."""
    return f"{thing.size} {thing.kind}".strip()


def a(words: str) -> str:
    """Return ``words`` with an indefinite article."""
    return f"{'some' if words.endswith('grapes') else 'an' if words[0] in 'aeiou' else 'a'} {words}"


def is_are(name: str | int) -> str:
    """Return "is" or "are" for a name or a number."""
    singular = name == 1 if isinstance(name, int) else not name.endswith("grapes")
    return "is" if singular else "are"


class Speaker:
    """Author of random text about a scene.

    ``names`` [thing]: shortest unique name, such as "star", "red star" or "small red star"; None if there is none. ``known``:
    indices of things with a unique name.
    """

    drills = False
    """Whether questions and answers have only one or two words."""

    def __init__(self, scene: Scene, generator: np.random.Generator) -> None:
        self.scene, self.things, self.generator = scene, scene.things, generator
        forms = [tuple(dict.fromkeys((thing.name, thing.kind, named(thing)))) for thing in self.things]
        self.names = [next((name for name in own if sum(name in other for other in forms) == 1), None) for own in forms]
        self.known = [place for place, name in enumerate(self.names) if name]

    def say(self, form: str, **slots: str | None) -> str:
        """Return a sentence in a random wording of ``form``."""
        return sentence(form, self.generator, **{name: str(text) for name, text in slots.items()})

    def _exchange(self, kind: str, asked: str, answered: str, again: str | None = None, **slots: str | None) -> Exchange:
        """Return an exchange of the forms ``asked`` and ``answered``, each in a random wording."""
        asked, answered = (f"drill_{asked}", f"drilled_{asked}") if self.drills else (asked, answered)
        return Exchange(kind, self.say(asked, **slots), self.say(answered, **slots), again=again or "")

    def _any(self, choices: list[Thing] | tuple[Thing, ...]) -> Thing:
        return choices[int(self.generator.integers(len(choices)))]

    def describe(self) -> Exchange:
        """Return the description: number of things, each thing in reading order, relations, and special features."""
        things, names, count = self.things, self.names, len(self.things)
        question = DESCRIBE[int(self.generator.integers(len(DESCRIBE)))]
        if not things:
            known = [self.say("is_ground", colour=self.scene.ground)] if self.scene.ground else []
            return Exchange("describe", question, " ".join((NOTHING_KNOWN, *known)))
        ground = f"on {a(self.scene.ground)} background"
        sentences = [self.say("opening", things=many(count, "thing"), ground=ground, verb=is_are(count))]
        for thing in things:
            sentences.append(self.say("thing", what=a(named(thing)), where=at(thing.region), verb=is_are(thing.name)))
        for place in range(count - 1):
            across, down = things[place + 1].x - things[place].x, things[place + 1].y - things[place].y
            plain = max(abs(across), abs(down)) >= _SIDE_BY_SIDE and abs(abs(across) - abs(down)) >= 4
            if plain and names[place] and names[place + 1]:
                side = side_of(across, down, abs(across) > abs(down))
                verb = is_are(things[place].name)
                sentences.append(self.say("relation", name=names[place], verb=verb, side=side, other=names[place + 1]))
        covered = overlapping(self.scene)
        for front, back in covered:
            if names[front] and names[back]:
                sentences.append(self.say("covers", name=names[front], other=names[back]))
        if count > 1:
            if not covered:
                sentences.append(self.say("apart"))
            shapes = sum(thing.is_shape for thing in things)
            if 0 < shapes < count:
                noun, rest = "is a shape" if shapes == 1 else "are shapes", count - shapes
                slots = {"shapes": NUMBERS[shapes], "noun": noun, "rest": NUMBERS[rest], "verb": is_are(rest)}
                sentences.append(self.say("shapes", **slots))
            largest = self._largest()
            if largest is not None:
                sentences.append(self.say("is_largest", name=self.names[largest]))
        return Exchange("describe", question, " ".join(sentences))

    def _largest(self) -> int | None:
        """Return the index of the thing that is clearly larger than all others; None if there is none, or none with a unique
        name."""
        order = sorted(range(len(self.things)), key=lambda place: -self.things[place].pixels)
        first, second = (self.things[place] for place in order[:2])
        return order[0] if first.pixels > 1.2 * second.pixels and self.names[order[0]] else None

    def questions(self, count: int, weights: Mapping[str, float] = MIXED) -> list[Exchange]:
        """Return up to ``count`` distinct questions, of random kinds by ``weights``. Some lack capitals and punctuation."""
        share = np.array([weights.get(kind, 0.0) for kind in MIXED])
        share /= share.sum()
        exchange_by_question: dict[str, Exchange] = {}
        for _ in range(4 * count):
            if len(exchange_by_question) == count:
                break
            kind = list(MIXED)[int(self.generator.choice(len(MIXED), p=share))]
            exchange = getattr(self, kind)()
            if exchange:
                look = self.look() if exchange.kind in _LOOKED else ""
                exchange_by_question.setdefault(exchange.question, replace(exchange, look=look))
        return [
            replace(exchange, question=exchange.question.lower().rstrip("?.")) if self.generator.random() < 0.12 else exchange
            for exchange in exchange_by_question.values()
        ]

    def look(self) -> str:
        """Return the look: every thing in reading order. The place comes first, so the name's hidden state can include it."""
        if not self.things:
            return NOTHING_KNOWN
        listed = [f"{at(thing.region)} {a(named(thing))}" for thing in self.things]
        return capital(" and ".join([part for part in (", ".join(listed[:-1]), listed[-1]) if part])) + "."

    def what(self) -> Exchange | None:
        """Return a question about what is in a region, which may be empty; None about a region with several things."""
        region = int(self.generator.integers(9))
        if not self.things:
            return Exchange("what", self.say("what", where=at(region)), NOTHING_KNOWN)
        if self.generator.random() < 0.85:
            region = self._any(self.things).region
        things, slots = [thing for thing in self.things if thing.region == region], {"where": at(region)}
        if len(things) > 1:
            return None
        if not things:
            return self._exchange("what", "what", "nothing", **slots)
        slots |= {"verb": is_are(things[0].name), "what": a(named(things[0]))}
        return self._exchange("what", "what", "something", **slots)

    def some_place(self) -> int | None:
        """Return the index of a random thing with a unique name, or None."""
        return int(self.generator.choice(self.known)) if self.known else None

    def _absent(self, kind: str, slot: str = "name", **slots: str) -> Exchange | None:
        """Return a question about a thing that is not there, named in ``slot``; None for most questions about a picture with
        known things."""
        if self.drills or (self.things and self.generator.random() > _ABSENT):
            return None
        name = self.some_name(1.0)
        slots = {"verb": is_are(slots.get("name", name)), slot: name, **slots}
        answer = self.say("absent", name=name, verb=is_are(name))
        return None if self.number(name) else Exchange(kind, self.say(kind, **slots), answer)

    def where(self) -> Exchange | None:
        """Return a question about the place of a thing."""
        if absent := self._absent("where"):
            return absent
        place = self.some_place()
        if place is None:
            return None
        thing, name = self.things[place], self.names[place]
        return self._exchange("where", "where", "place", name=name, verb=is_are(thing.name), where=at(thing.region))

    def count(self) -> Exchange:
        """Return a question about the number of things with a name, of all things, or of shapes."""
        draw = self.generator.random()
        if draw < 0.2:
            number, word = len(self.things), "thing"
        elif draw < 0.35:
            number, word = sum(thing.is_shape for thing in self.things), "shape"
        else:
            word = self.some_name(0.25)
            number = self.number(word)
        names = plural(word, 2)
        slots = {"names": names, "verb": is_are(number), "many": many(number, word)}
        return self._exchange("count", "count", "number", f"And {names}?", **slots)

    def number(self, name: str) -> int:
        """Return the number of things called ``name``."""
        return sum(thing.name == name for thing in self.things)

    def some_name(self, absent: float) -> str:
        """Return a random name from the scene or, with probability ``absent``, from all names."""
        if not self.things or self.generator.random() < absent:
            every = (*NAMES, *SHAPES)
            return every[int(self.generator.integers(len(every)))]
        return self._any(self.things).name

    def colour(self) -> Exchange | None:
        """Return a question about the colour of a shape or of the background, or None."""
        if not self.things and not self.scene.ground:
            return None
        shapes = [thing for thing in self.things if thing.is_shape and self.number(thing.name) == 1]
        if not shapes or self.generator.random() < 0.2:
            return self._exchange("colour", "ground", "is_ground", colour=self.scene.ground)
        thing = self._any(shapes)
        return self._exchange("colour", "colour", "is_colour", name=thing.name, colour=thing.colour)

    def side(self) -> Exchange | None:
        """Return a question about the direction between two things, or None."""
        either = "left or right of" if self.generator.random() < 0.6 else "above or below"
        slot, present = ("name", "other")[:: 1 if self.generator.random() < 0.5 else -1]
        if absent := self._absent("side", slot, either=either, **{present: self.some_name(0.0)}):
            return absent
        if len(self.known) < 2:
            return None
        first, second = (int(place) for place in self.generator.permutation(self.known)[:2])
        across, down = self.things[second].x - self.things[first].x, self.things[second].y - self.things[first].y
        level = either.startswith("left")
        if abs(across if level else down) < _SIDE_BY_SIDE:
            return None
        slots = {"name": self.names[first], "other": self.names[second], "verb": is_are(self.things[first].name)}
        slots |= {"either": either, "axis": "level" if level else "height", "side": side_of(across, down, level)}
        return self._exchange("side", "side", "relation", **slots)

    def next(self) -> Exchange | None:
        """Return a question about the thing nearest to another; None unless one is clearly nearest."""
        if absent := self._absent("next"):
            return absent
        place = self.some_place()
        if place is None:
            return None
        thing = self.things[place]
        others = [other for other in self.things if other is not thing]
        far = sorted((math.dist((other.x, other.y), (thing.x, thing.y)), at) for at, other in enumerate(others))
        if not far or (len(far) > 1 and far[1][0] - far[0][0] < 10):
            return None
        nearest = others[far[0][1]]
        slots = {"verb": is_are(nearest.name), "what": a(named(nearest)), "name": self.names[place]}
        return self._exchange("next", "next", "is_next", **slots)

    def largest(self) -> Exchange | None:
        """Return a question about the largest thing, or None."""
        place = self._largest() if len(self.things) > 1 else None
        return None if place is None else self._exchange("what", "largest", "is_largest", name=self.names[place])

    def there(self) -> Exchange:
        """Return a question about whether a thing is in the scene."""
        name = self.some_name(0.5)
        yes, what = ("Yes", a(name)) if self.number(name) else ("No", f"no {name}")
        slots = {"name": name, "verb": is_are(name), "any": a(name).replace("some", "any"), "yes": yes, "what": what}
        return self._exchange("count", "there", "is_there", f"{capital(a(name))}?", **slots)


def side_of(across: float, down: float, level: bool) -> str:
    """Return the direction of a thing as seen from another, which is ``across`` pixels to the right and ``down`` below.

    ``level``: horizontal or vertical direction.
    """
    if level:
        return "left of" if across > 0 else "right of"
    return "above" if down > 0 else "below"


def exchanges(scene: Scene, count: int, weights: Mapping[str, float] = MIXED) -> list[Exchange]:
    """Return the description and up to ``count`` questions of random kinds by ``weights``, determined by the scene's seed."""
    speaker = Speaker(scene, np.random.default_rng([scene.seed, 11]))
    return [speaker.describe(), *speaker.questions(count, weights)]


def drill(speaker: Speaker, count: int) -> list[tuple[str, str]]:
    """Return up to ``count`` distinct (question, answer) pairs of one or two words, each with a leading space."""
    quick, answer_by_question = copy.copy(speaker), dict[str, str]()
    quick.drills = True
    for _ in range(2 * count):
        kind = list(_DRILLED)[int(quick.generator.choice(len(_DRILLED), p=list(_DRILLED.values())))]
        if kind == "count":
            name = quick.some_name(0.3)
            pair = f" {plural(name, 2)}", f" {NUMBERS[quick.number(name)]}."
        elif exchange := getattr(quick, kind)():
            pair = exchange.question, exchange.answer
        else:
            continue
        if len(answer_by_question) < count:
            answer_by_question.setdefault(*pair)
    return list(answer_by_question.items())


@dataclass(frozen=True)
class Batch:
    """A batch of scenes. Labels are IGNORED except on answers.

    ``pixels``: uint8 [scene, row, column, 3]. ``patches``: dense labels by head, int64 [scene, visual]. ``long``: descriptions,
    int64 [scene, token]. ``short``: questions, int64 [scene, question, token]. ``read``: conversations without a picture, int64
    [page, token].
    """

    pixels: Tensor
    patches: dict[str, Tensor]
    long: Tensor
    long_labels: Tensor
    short: Tensor
    short_labels: Tensor
    read: Tensor
    read_labels: Tensor


def train_tokenizer(examples: int = 4000, vocab: int = 1024) -> Any:
    """Train a byte-level BPE tokenizer on text about scenes."""
    spoken = (exchange for seed in range(examples) for exchange in exchanges(scenes.compose(seed)[0], 6))
    texts = [text for exchange in spoken for text in (exchange.question, exchange.spoken)]
    # Names occur often enough to become single tokens.
    names = [f"a {word} {word}s" for word in KINDS for _ in range(60)]
    return tokenizer_from(byte_pairs([*texts, *DESCRIBE, *names], vocab, SPECIAL).to_str())


Row = tuple[list[int], list[int]]
"""(Tokens, labels) of a conversation."""


class Writer:
    """Encoder of conversations as token ids and labels."""

    def __init__(self, tokenizer: Any) -> None:
        self.backend = tokenizer.backend_tokenizer
        self.end, self.user, self.assistant, self.image = (
            int(self.backend.token_to_id(token)) for token in (END, USER, ASSISTANT, IMAGE)
        )

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def conversation(self, exchange: Exchange, looking: bool = True) -> Row:
        """Return the tokens after the picture and their labels.

        ``looking``: whether the whole look has labels; otherwise only the beginning does.
        """
        question, answer = self.ids(exchange.question), self.ids(exchange.spoken)
        labels = [IGNORED] * len(question) + [*answer, self.end]
        if exchange.look and not looking:
            unlearned = len(self.ids(exchange.look)) - _BEGINNING
            first = len(question) + _BEGINNING
            labels[first : first + unlearned] = [IGNORED] * unlearned
        return [*question, self.assistant, *answer], labels

    def conversations(self, every: Sequence[Exchange]) -> list[Row]:
        """Return the conversations about one scene. Only one look has labels in full, so that answers dominate the loss."""
        first = next((place for place, exchange in enumerate(every) if exchange.look), 0)
        return [self.conversation(exchange, place == first) for place, exchange in enumerate(every)]

    def page(self, every: Sequence[Exchange]) -> Row:
        """Return one conversation without a picture. The first reply contains the look, from which all answers follow.

        Only answers have labels.
        """
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
        """Return a look and (question, answer) pairs as a row, with labels on the answers."""
        tokens = [self.user, self.assistant, *self.ids(look)]
        labels = [IGNORED] * len(tokens)
        for question, answer in ((self.ids(question), self.ids(answer)) for question, answer in every):
            tokens += [*question, *answer]
            labels += [*[IGNORED] * (len(question) - 1), *answer, IGNORED]
        return tokens, labels


def patches_of(scene: Scene, grid: int) -> dict[str, np.ndarray]:
    """Return the dense labels by head, int64 [visual], from the front thing at the middle of each patch."""
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


def padded(rows: Sequence[Row], end: int) -> tuple[Tensor, Tensor]:
    """Return tokens and labels of ``rows``, padded to int64 [row, token]."""
    tokens, labels = ([torch.tensor(part) for part in parts] for parts in zip(*rows, strict=True))
    return pad_sequence(tokens, True, end), pad_sequence(labels, True, IGNORED)


def pages(chosen: Sequence[Scene], writer: Writer, questions: int) -> tuple[Tensor, Tensor]:
    """Return tokens and labels, int64 [page, token], of drills and conversations without a picture."""
    rows = []
    for scene in chosen:
        speaker = Speaker(scenes.snap(scene), np.random.default_rng([scene.seed, 13]))
        if speaker.generator.random() < _DRILLS:
            rows.append(writer.drill(speaker.look(), drill(speaker, 4 * questions)))
        else:
            rows.append(writer.page(sorted(speaker.questions(questions, READING), key=lambda exchange: not exchange.look)))
    return padded(rows, writer.end)
