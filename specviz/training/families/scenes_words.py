"""What is said about a scene, from a fixed grammar with many forms, and scenes as batches with what a dense teacher says of them.

Facts are exact; the wording is drawn by chance from ``assets/phrases/scenes.toml``. Things are named so that nobody can mistake
one for another: questions ask only about things whose name is theirs alone in the scene.

Drills are the shortest questions, all to be read off one look. A sentence asks once in twenty tokens for something to be found,
a drill once in four. Names are found by looking for the same word, and that is learned only from very many cases.

One row holds a prefix (the user's mark and the picture's tokens) and behind it several conversations that do not see each
other: the description first, then short questions. So the picture is encoded and read once for all of them.
Axis names: ``scene``, ``visual`` (tokens of the picture), ``token``, ``question``.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.models.vision.scenes import ASSISTANT, END, IMAGE, SPECIAL, USER, tokenizer_from
from specviz.training.data import IGNORED
from specviz.training.families import scenes
from specviz.training.families.scenes import NAMES, REGIONS, SHAPES, Scene, Thing, overlapping
from specviz.training.phrases import byte_pairs, capital, phrases, sentence

_DATA = phrases("scenes")
NUMBERS, DESCRIBE = _DATA["numbers"], _DATA["describe"]
MIXED, LESSONS, READING = _DATA["mixed"], _DATA["lessons"], _DATA["reading"]
"""How often each kind of question is asked: by default, while it learns, and where there is no picture."""
_LOOKED = {"where", "count", "side", "next"}
"""Kinds of questions whose answer begins with a look at everything."""
_SIDE_BY_SIDE = 14
"""Pixels that one thing must be further left, or higher, for the words to be said."""
_DRILLED = {"where": 0.2, "count": 0.15, "there": 0.15, "side": 0.2, "next": 0.3}
"""How often a drill asks each."""
_BEGINNING = 3
"""Tokens of a look that every conversation teaches: enough to know that this kind of question begins with one."""
_DRILLS = 0.7
"""Of the pages, those that are drills."""
_UNSEEN_FROM = 1 << 39
"""Seeds from here on are of scenes that are told of while training, and never drawn."""
KINDS = (*NAMES, *SHAPES)
HEADS = {"kind": len(KINDS) + 1, "colour": len(scenes.COLOURS) + 1, "size": len(scenes.SIZES) + 1, "region": 10}
"""What the dense teacher says of a patch, and how many answers there are; 0 is "nothing here" (or no colour)."""


@dataclass(frozen=True)
class Exchange:
    """A question with its answer. ``kind`` is what it asks for: describe, what, where, count, colour, side, next.

    ``look`` is what is said before the answer: where everything is. Names are easier found, counted and compared in
    words that stand there than in the picture itself. ``again`` is what was asked for, in a word: behind it stands the
    answer, which otherwise would have to be known before the word is there to be looked for. It has no capital: a word
    that begins with one is another token.
    """

    kind: str
    question: str
    answer: str
    look: str = ""
    again: str = ""

    @property
    def spoken(self) -> str:
        """All that is said: what was looked at, what was asked for, then the answer."""
        return " ".join(part for part in (self.look, self.again, self.answer) if part)


def at(region: int) -> str:
    """ "at the top left", "in the middle", …"""
    place = REGIONS[region]
    return f"{'in' if place == 'middle' else 'on' if place in {'left', 'right'} else 'at'} the {place}"


def plural(name: str, count: int) -> str:
    """ "cats", "foxes", "cherries"; one stays one."""
    if count == 1 or name in {"fish", "sheep", "grapes"}:
        return name
    if name.endswith("y") and name[-2] not in "aeiou":
        return name[:-1] + "ies"
    return name + ("es" if name.endswith(("s", "x", "ch")) else "s")


def many(count: int, name: str) -> str:
    """ "no cats", "one cat", "two cats"."""
    return f"{NUMBERS[count]} {plural(name, count)}"


def named(thing: Thing) -> str:
    """Size, colour and name, without an article."""
    return f"{thing.size} {thing.kind}".strip()


def a(words: str) -> str:
    """With the indefinite article."""
    return f"{'some' if words.endswith('grapes') else 'an' if words[0] in 'aeiou' else 'a'} {words}"


def is_are(name: str | int) -> str:
    """The verb that goes with a name or a number."""
    singular = name == 1 if isinstance(name, int) else not name.endswith("grapes")
    return "is" if singular else "are"


class Speaker:
    """Words about one scene, drawn by ``generator``. ``names`` are the shortest that are a thing's alone ("star", "red star",
    "small red star"), None where there is none; ``known`` are the indices of things that have one."""

    drills = False
    """Whether questions and answers are in a word or two."""

    def __init__(self, scene: Scene, generator: np.random.Generator) -> None:
        self.scene, self.things, self.generator = scene, scene.things, generator
        forms = [tuple(dict.fromkeys((thing.name, thing.kind, named(thing)))) for thing in self.things]
        self.names = [next((name for name in own if sum(name in other for other in forms) == 1), None) for own in forms]
        self.known = [place for place, name in enumerate(self.names) if name]

    def say(self, form: str, **slots: str | None) -> str:
        """A sentence in one of the forms there are."""
        return sentence(form, self.generator, **{name: str(text) for name, text in slots.items()})

    def _exchange(self, kind: str, asked: str, answered: str, again: str | None = None, **slots: str | None) -> Exchange:
        """A question and its answer, each in one of the forms there are."""
        asked, answered = (f"drill_{asked}", f"drilled_{asked}") if self.drills else (asked, answered)
        return Exchange(kind, self.say(asked, **slots), self.say(answered, **slots), again=again or "")

    def _any(self, choices: list[Thing] | tuple[Thing, ...]) -> Thing:
        return choices[int(self.generator.integers(len(choices)))]

    def describe(self) -> Exchange:
        """The long description: how many, each thing in reading order, how they stand to each other, and what is special."""
        things, names, count = self.things, self.names, len(self.things)
        ground = f"on a {self.scene.ground} background"
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
        question = DESCRIBE[int(self.generator.integers(len(DESCRIBE)))]
        return Exchange("describe", question, " ".join(sentences))

    def _largest(self) -> int | None:
        """The one that is larger by a kind of size than all others, if it has a name of its own."""
        order = sorted(range(len(self.things)), key=lambda place: -self.things[place].pixels)
        first, second = (self.things[place] for place in order[:2])
        return order[0] if first.size != second.size and self.names[order[0]] else None

    def questions(self, count: int, weights: Mapping[str, float] = MIXED) -> list[Exchange]:
        """Up to ``count`` different questions, of kinds as frequent as ``weights``; some are asked without capitals or marks."""
        share = np.array([weights.get(kind, 0.0) for kind in MIXED])
        share /= share.sum()
        exchange_by_question: dict[str, Exchange] = {}
        for _ in range(4 * count):
            if len(exchange_by_question) == count:
                break
            kind = list(MIXED)[int(self.generator.choice(len(MIXED), p=share))]
            exchange = getattr(self, kind)()
            if exchange is not None:
                look = self.look() if exchange.kind in _LOOKED else ""
                exchange_by_question.setdefault(exchange.question, replace(exchange, look=look))
        return [
            replace(exchange, question=exchange.question.lower().rstrip("?.")) if self.generator.random() < 0.12 else exchange
            for exchange in exchange_by_question.values()
        ]

    def look(self) -> str:
        """Every thing with its place, in reading order: what most answers begin with.

        The place stands before the name, so that what stands at the name can know it.
        """
        listed = [f"{at(thing.region)} {a(named(thing))}" for thing in self.things]
        return capital(" and ".join([part for part in (", ".join(listed[:-1]), listed[-1]) if part])) + "."

    def what(self) -> Exchange:
        """What is in a region; sometimes one with nothing in it."""
        region = int(self.generator.integers(9))
        if self.generator.random() < 0.85:
            region = self._any(self.things).region
        things, slots = [thing for thing in self.things if thing.region == region], {"where": at(region)}
        if not things:
            return self._exchange("what", "what", "nothing", **slots)
        slots |= {"verb": is_are(things[0].name), "what": a(named(things[0]))}
        return self._exchange("what", "what", "something", **slots)

    def some_place(self) -> int | None:
        """One of the things that have a name of their own."""
        return int(self.generator.choice(self.known)) if self.known else None

    def where(self) -> Exchange | None:
        """Where a thing is."""
        place = self.some_place()
        if place is None:
            return None
        thing, name = self.things[place], self.names[place]
        return self._exchange("where", "where", "place", name=name, verb=is_are(thing.name), where=at(thing.region))

    def count(self) -> Exchange:
        """How many of a kind, of all things, or of the shapes."""
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
        """How many things are called so."""
        return sum(thing.name == name for thing in self.things)

    def some_name(self, absent: float) -> str:
        """The name of something in the scene, or with this probability of something that may not be there."""
        if self.generator.random() < absent:
            every = (*NAMES, *SHAPES)
            return every[int(self.generator.integers(len(every)))]
        return self._any(self.things).name

    def colour(self) -> Exchange:
        """Which colour a shape has, or the background."""
        shapes = [thing for thing in self.things if thing.is_shape and self.number(thing.name) == 1]
        if not shapes or self.generator.random() < 0.2:
            return self._exchange("colour", "ground", "is_ground", colour=self.scene.ground)
        thing = self._any(shapes)
        return self._exchange("colour", "colour", "is_colour", name=thing.name, colour=thing.colour)

    def side(self) -> Exchange | None:
        """Left or right of, above or below."""
        if len(self.known) < 2:
            return None
        first, second = (int(place) for place in self.generator.permutation(self.known)[:2])
        across, down = self.things[second].x - self.things[first].x, self.things[second].y - self.things[first].y
        level = self.generator.random() < 0.6
        if abs(across if level else down) < _SIDE_BY_SIDE:
            return None
        slots = {"name": self.names[first], "other": self.names[second], "verb": is_are(self.things[first].name)}
        slots |= {"either": "left or right of", "axis": "level"} if level else {"either": "above or below", "axis": "height"}
        return self._exchange("side", "side", "relation", side=side_of(across, down, level), **slots)

    def next(self) -> Exchange | None:
        """The nearest other thing, where one is plainly the nearest."""
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
        """The largest thing."""
        place = self._largest() if len(self.things) > 1 else None
        return None if place is None else self._exchange("what", "largest", "is_largest", name=self.names[place])

    def there(self) -> Exchange:
        """Whether there is one of a kind."""
        name = self.some_name(0.5)
        yes, what = ("Yes", a(name)) if self.number(name) else ("No", f"no {name}")
        slots = {"name": name, "verb": is_are(name), "any": a(name).replace("some", "any"), "yes": yes, "what": what}
        return self._exchange("count", "there", "is_there", f"{capital(a(name))}?", **slots)


def side_of(across: float, down: float, level: bool) -> str:
    """How a thing stands to another that is this far to the right and further down, in its row or in its column."""
    if level:
        return "left of" if across > 0 else "right of"
    return "above" if down > 0 else "below"


def exchanges(scene: Scene, count: int, weights: Mapping[str, float] = MIXED) -> list[Exchange]:
    """The description and up to ``count`` questions of kinds as frequent as ``weights``, worded by the scene's own seed."""
    speaker = Speaker(scene, np.random.default_rng([scene.seed, 11]))
    return [speaker.describe(), *speaker.questions(count, weights)]


def drill(speaker: Speaker, count: int) -> list[tuple[str, str]]:
    """Up to ``count`` questions and answers in a word or two, each with the space before it. None comes twice: its answer would
    stand there already."""
    quick, answer_by_question = copy.copy(speaker), dict[str, str]()
    quick.drills = True
    for _ in range(2 * count):
        kind = list(_DRILLED)[int(quick.generator.choice(len(_DRILLED), p=list(_DRILLED.values())))]
        if kind == "count":
            name = quick.some_name(0.3)
            pair = f" {plural(name, 2)}", f" {NUMBERS[quick.number(name)]}."
        elif (exchange := getattr(quick, kind)()) is not None:
            pair = exchange.question, exchange.answer
        else:
            continue
        if len(answer_by_question) < count:
            answer_by_question.setdefault(*pair)
    return list(answer_by_question.items())


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


def patches_of(scene: Scene, grid: int) -> dict[str, np.ndarray]:
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


def batch_of(chosen: Sequence[Scene], writer: Writer, grid: int, questions: int) -> Batch:
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


def pages(chosen: Sequence[Scene], writer: Writer, questions: int) -> tuple[Tensor, Tensor]:
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
    for first in itertools.count(start, size):
        chosen = sorted((scenes.compose(first + place) for place in range(size)), key=lambda scene: len(scene.things))
        parts = [batch_of(chosen[place : place + part], writer, grid, questions) for place in range(0, size, part)]
        if reading:
            told = (scenes.compose(_UNSEEN_FROM + reading * first + place) for place in range(reading * size))
            unseen, cut = sorted(told, key=lambda scene: len(scene.things)), -(-reading * size // len(parts))
            for place, batch in enumerate(parts):
                read, labels = pages(unseen[place * cut : (place + 1) * cut], writer, questions)
                parts[place] = replace(batch, read=read, read_labels=labels)
        yield parts
