"""What is said about a scene: long descriptions and questions with their answers, from a fixed grammar with many forms.

Facts are exact; the wording is drawn by chance from ``assets/phrases/scenes.toml``. Things are named so that nobody can mistake
one for another: questions ask only about things whose name is theirs alone in the scene.

Drills are the shortest questions, all to be read off one look. A sentence asks once in twenty tokens for something to be found,
a drill once in four. Names are found by looking for the same word, and that is learned only from very many cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from specviz.training.families.scenes import NAMES, REGIONS, SHAPES, Scene, Thing, overlapping
from specviz.training.phrases import capital, phrases, sentence

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

Drill = tuple[str, str]
"""Question and answer, each with the space before it."""


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

    def where(self, asked: str = "where", answered: str = "place") -> Exchange | None:
        """Where a thing is."""
        place = self.some_place()
        if place is None:
            return None
        thing, name = self.things[place], self.names[place]
        return self._exchange("where", asked, answered, name=name, verb=is_are(thing.name), where=at(thing.region))

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

    def side(self, asked: str = "side", answered: str = "relation") -> Exchange | None:
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
        return self._exchange("side", asked, answered, side=side_of(across, down, level), **slots)

    def next(self, asked: str = "next", answered: str = "is_next") -> Exchange | None:
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
        return self._exchange("next", asked, answered, **slots)

    def largest(self) -> Exchange | None:
        """The largest thing."""
        place = self._largest() if len(self.things) > 1 else None
        return None if place is None else self._exchange("what", "largest", "is_largest", name=self.names[place])

    def there(self, asked: str = "there", answered: str = "is_there") -> Exchange:
        """Whether there is one of a kind."""
        name = self.some_name(0.5)
        yes, what = ("Yes", a(name)) if self.number(name) else ("No", f"no {name}")
        slots = {"name": name, "verb": is_are(name), "any": a(name).replace("some", "any"), "yes": yes, "what": what}
        return self._exchange("count", asked, answered, f"{capital(a(name))}?", **slots)

    def drill(self, kind: str) -> Drill | None:
        """A question of this kind and its answer, each in a word or two; None where there is nothing to ask."""
        if kind == "count":
            name = self.some_name(0.3)
            return f" {plural(name, 2)}", f" {NUMBERS[self.number(name)]}."
        exchange = getattr(self, kind)(f"drill_{kind}", f"drilled_{kind}")
        return exchange and (exchange.question, exchange.answer)


def side_of(across: float, down: float, level: bool) -> str:
    """How a thing stands to another that is this far to the right and further down, in its row or in its column."""
    if level:
        return "left of" if across > 0 else "right of"
    return "above" if down > 0 else "below"


def exchanges(scene: Scene, count: int, weights: Mapping[str, float] = MIXED) -> list[Exchange]:
    """The description and up to ``count`` questions of kinds as frequent as ``weights``, worded by the scene's own seed."""
    speaker = Speaker(scene, np.random.default_rng([scene.seed, 11]))
    return [speaker.describe(), *speaker.questions(count, weights)]


def drill(speaker: Speaker, count: int) -> list[Drill]:
    """Up to ``count`` questions. None comes twice: its answer would stand there already."""
    answer_by_question: dict[str, str] = {}
    for _ in range(2 * count):
        kind = list(_DRILLED)[int(speaker.generator.choice(len(_DRILLED), p=list(_DRILLED.values())))]
        pair = speaker.drill(kind)
        if pair is not None and len(answer_by_question) < count:
            answer_by_question.setdefault(*pair)
    return list(answer_by_question.items())
