"""What is said about a scene: long descriptions and questions with their answers, from a fixed grammar with many forms.

Facts are exact; the wording is drawn by chance. Things are named so that nobody can mistake one for another: questions
ask only about things whose name is theirs alone in the scene.

Drills are the shortest questions, all to be read off one look. A sentence asks once in twenty tokens for something to be found,
a drill once in four. Names are found by looking for the same word, and that is learned only from very many cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from specviz.training.vision import scene_art
from specviz.training.vision.scene_names import DESCRIBE, NUMBERS, Exchange, a, at, cap, is_are, named, own_names, plural
from specviz.training.vision.scenes import Scene, Thing, overlapping

MIXED = {"what": 3, "where": 3, "count": 2, "colour": 2, "side": 2, "next": 2, "largest": 0.7, "there": 1.3}
"""How often each kind of question is asked."""
LESSONS = {"what": 1, "where": 4, "count": 2, "colour": 1, "side": 5, "next": 4, "largest": 0.5, "there": 1}
"""The same while it learns: most of what is hardest."""
READING = {"what": 1, "where": 4, "count": 3, "side": 4, "next": 4, "there": 2}
"""The same where there is no picture, only what was said about it."""
_LOOKED = {"where", "count", "side", "next"}
"""Kinds of questions whose answer begins with a look at everything."""
_SIDE_BY_SIDE = 14
"""Pixels that one thing must be further left, or higher, for the words to be said."""
_SIDES = ("left of", "right of", "above", "below")
_DRILLED = (0.2, 0.15, 0.15, 0.2, 0.3)
"""How often a drill asks where, how many, whether, which side, next to what."""

Drill = tuple[str, str]
"""Question and answer, each with the space before it."""


def _and(parts: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([part for part in (", ".join(parts[:-1]), parts[-1]) if part])


class Speaker:
    """Words about one scene, drawn by ``generator``."""

    def __init__(self, scene: Scene, generator: np.random.Generator) -> None:
        self.scene, self.generator = scene, generator
        self.names = own_names(scene)
        self.known = [place for place, name in enumerate(self.names) if name]

    def pick(self, *forms: str) -> str:
        """One of several ways to say it; the first ones are more usual."""
        weight = np.array([1 / (place + 1) for place in range(len(forms))])
        return forms[int(self.generator.choice(len(forms), p=weight / weight.sum()))]

    def describe(self) -> Exchange:
        """The long description: how many, each thing in reading order, how they stand to each other, and what is special."""
        sentences = [self._opening(), *self._things(), *self._relations(), *self._closing()]
        question = DESCRIBE[int(self.generator.integers(len(DESCRIBE)))]
        return Exchange("describe", question, " ".join(sentences))

    def _opening(self) -> str:
        count = len(self.scene.things)
        things = f"{NUMBERS[count]} {plural('thing', count)}"
        ground = f"on a {self.scene.ground} background"
        verb = "is" if count == 1 else "are"
        return self.pick(
            f"The picture shows {things} {ground}.", f"There {verb} {things} {ground}.",
            f"{cap(ground)} there {verb} {things}.", f"This is a picture of {things} {ground}.",
        )  # fmt: skip

    def _things(self) -> list[str]:
        return [self._sentence(thing) for thing in self.scene.things]

    def _sentence(self, thing: Thing) -> str:
        what, where, verb = a(named(thing)), at(thing.region), is_are(thing.name)
        return self.pick(
            f"{cap(where)} there {verb} {what}.", f"{cap(where)} you can see {what}.", f"{cap(what)} {verb} {where}."
        )

    def _relations(self) -> list[str]:
        """Neighbours in reading order, and every overlap."""
        things, names = self.scene.things, self.names
        sentences = []
        for place in range(len(things) - 1):
            word = self._side(things[place], things[place + 1])
            if names[place] and names[place + 1] and word:
                sentences.append(f"The {names[place]} {is_are(things[place].name)} {word} the {names[place + 1]}.")
        hits = [pair for pair in overlapping(self.scene) if names[pair[0]] and names[pair[1]]]
        sentences += [f"The {names[front]} partly covers the {names[back]}." for front, back in hits]
        return sentences

    @staticmethod
    def _side(first: Thing, second: Thing) -> str:
        """How the first stands to the second, by the larger of the two distances; nothing where it is not plain."""
        across, down = second.x - first.x, second.y - first.y
        if max(abs(across), abs(down)) < _SIDE_BY_SIDE or abs(abs(across) - abs(down)) < 4:
            return ""
        if abs(across) > abs(down):
            return "left of" if across > 0 else "right of"
        return "above" if down > 0 else "below"

    def _closing(self) -> list[str]:
        things = self.scene.things
        if len(things) < 2:
            return []
        shapes = sum(thing.is_shape for thing in things)
        sentences = [] if overlapping(self.scene) else [self.pick("Nothing overlaps.", "No two things overlap.")]
        if 0 < shapes < len(things):
            rest = len(things) - shapes
            sentences.append(f"{cap(NUMBERS[shapes])} of the things {'is a shape' if shapes == 1 else 'are shapes'} "
                        f"and {NUMBERS[rest]} {'is' if rest == 1 else 'are'} not.")  # fmt: skip
        largest = self._largest()
        if largest is not None:
            sentences.append(f"The largest thing is the {self.names[largest]}.")
        return sentences

    def _largest(self) -> int | None:
        """The one that is larger by a kind of size than all others, if it has a name of its own."""
        order = sorted(range(len(self.scene.things)), key=lambda place: -self.scene.things[place].pixels)
        first, second = (self.scene.things[place] for place in order[:2])
        return order[0] if first.size != second.size and self.names[order[0]] else None

    def questions(self, count: int, weights: Mapping[str, float] = MIXED) -> list[Exchange]:
        """Up to ``count`` different questions, of kinds as frequent as ``weights``."""
        makers: dict[str, Callable[[], Exchange | None]] = {
            "what": self.what, "where": self.where, "count": self.count, "colour": self.colour, "side": self.side,
            "next": self.next_to, "largest": self.largest_thing, "there": self.is_there,
        }  # fmt: skip
        kinds = list(makers)
        share = np.array([weights.get(kind, 0.0) for kind in kinds])
        share /= share.sum()
        exchange_by_question: dict[str, Exchange] = {}
        for _ in range(4 * count):
            if len(exchange_by_question) == count:
                break
            candidate = makers[kinds[int(self.generator.choice(len(kinds), p=share))]]()
            if candidate is not None:
                look = self.look() if candidate.kind in _LOOKED else ""
                exchange_by_question.setdefault(candidate.question, replace(candidate, look=look))
        return [self._casual(exchange) for exchange in exchange_by_question.values()]

    def _casual(self, exchange: Exchange) -> Exchange:
        """Some people write without capitals or question marks."""
        if self.generator.random() < 0.12:
            return replace(exchange, question=exchange.question.lower().rstrip("?."))
        return exchange

    def look(self) -> str:
        """Every thing with its place, in reading order: what most answers begin with.

        The place stands before the name, so that what stands at the name can know it.
        """
        listed = [f"{at(thing.region)} {a(named(thing))}" for thing in self.scene.things]
        return cap(_and(listed)) + "."

    def what(self) -> Exchange | None:
        """What is in a region; sometimes one with nothing in it."""
        region = int(self.generator.integers(9))
        if self.generator.random() < 0.85:
            region = self.scene.things[int(self.generator.integers(len(self.scene.things)))].region
        things = [thing for thing in self.scene.things if thing.region == region]
        question = self.pick(f"What is {at(region)}?", f"What can you see {at(region)}?", f"Which thing is {at(region)}?")
        if not things:
            return Exchange("what", question, f"There is nothing {at(region)}.")
        return Exchange("what", question, f"There {is_are(things[0].name)} {a(named(things[0]))} {at(region)}.")

    def some_place(self) -> int | None:
        """One of the things that have a name of their own."""
        return int(self.generator.choice(self.known)) if self.known else None

    def where(self) -> Exchange | None:
        """Where a thing is."""
        place = self.some_place()
        if place is None:
            return None
        name, verb = self.names[place], is_are(self.scene.things[place].name)
        question = self.pick(
            f"Where {verb} the {name}?", f"Where in the picture {verb} the {name}?", f"Where can you see the {name}?"
        )
        return Exchange("where", question, f"The {name} {verb} {at(self.scene.things[place].region)}.")

    def count(self) -> Exchange:
        """How many of a kind, of all things, or of the shapes."""
        things = self.scene.things
        draw = self.generator.random()
        if draw < 0.2:
            many, word = len(things), "thing"
        elif draw < 0.35:
            many, word = sum(thing.is_shape for thing in things), "shape"
        else:
            word = self.some_name(0.25)
            many = sum(thing.name == word for thing in things)
        question = self.pick(
            f"How many {plural(word, 2)} are there?", f"How many {plural(word, 2)} can you see?",
            f"How many {plural(word, 2)} are in the picture?",
        )  # fmt: skip
        verb = "is" if many == 1 else "are"
        answer = f"There {verb} {NUMBERS[many]} {plural(word, many)}."
        return Exchange("count", question, answer, again=f"And {plural(word, 2)}?")

    def some_name(self, absent: float) -> str:
        """The name of something in the scene, or with this probability of something that may not be there."""
        if self.generator.random() < absent:
            every = (*scene_art.NAMES, *scene_art.SHAPES)
            return every[int(self.generator.integers(len(every)))]
        return self.scene.things[int(self.generator.integers(len(self.scene.things)))].name

    def colour(self) -> Exchange:
        """Which colour a shape has, or the background."""
        shapes = [
            thing for thing in self.scene.things
            if thing.is_shape and sum(other.name == thing.name for other in self.scene.things) == 1
        ]  # fmt: skip
        if not shapes or self.generator.random() < 0.2:
            question = self.pick("What colour is the background?", "Which colour is the background?")
            return Exchange("colour", question, f"The background is {self.scene.ground}.")
        thing = shapes[int(self.generator.integers(len(shapes)))]
        question = self.pick(f"What colour is the {thing.name}?", f"Which colour does the {thing.name} have?")
        return Exchange("colour", question, f"The {thing.name} is {thing.colour}.")

    def side(self) -> Exchange | None:
        """Left or right of, above or below."""
        if len(self.known) < 2:
            return None
        first, second = (int(place) for place in self.generator.permutation(self.known)[:2])
        thing, other = self.scene.things[first], self.scene.things[second]
        across, down = other.x - thing.x, other.y - thing.y
        name, than, verb = self.names[first], self.names[second], is_are(thing.name)
        level = self.generator.random() < 0.6
        distance, words = (across, ("left of", "right of")) if level else (down, ("above", "below"))
        if abs(distance) < _SIDE_BY_SIDE:
            return None
        either = "left or right of" if level else "above or below"
        question = f"{cap(verb)} the {name} {either} the {than}?"
        return Exchange("side", question, f"The {name} {verb} {words[0] if distance > 0 else words[1]} the {than}.")

    def next_to(self) -> Exchange | None:
        """The nearest other thing, where one is plainly the nearest."""
        place = self.some_place()
        nearest = None if place is None else self.nearest(place)
        if place is None or nearest is None:
            return None
        name = self.names[place]
        question = self.pick(f"What is next to the {name}?", f"Which thing is nearest to the {name}?")
        return Exchange("next", question, f"Next to the {name} there {is_are(nearest.name)} {a(named(nearest))}.")

    def nearest(self, place: int) -> Thing | None:
        """The other thing that is plainly the nearest, if any is."""
        thing = self.scene.things[place]
        others = [other for at_place, other in enumerate(self.scene.things) if at_place != place]
        others.sort(key=lambda other: (other.x - thing.x) ** 2 + (other.y - thing.y) ** 2)
        far = [((other.x - thing.x) ** 2 + (other.y - thing.y) ** 2) ** 0.5 for other in others]
        return None if not others or (len(far) > 1 and far[1] - far[0] < 10) else others[0]

    def largest_thing(self) -> Exchange | None:
        """The largest thing."""
        place = self._largest() if len(self.scene.things) > 1 else None
        if place is None:
            return None
        question = self.pick("What is the largest thing?", "Which thing is the largest?", "What is the biggest thing?")
        return Exchange("what", question, f"The largest thing is the {self.names[place]}.")

    def is_there(self) -> Exchange:
        """Whether there is one of a kind."""
        name = self.some_name(0.5)
        present = any(thing.name == name for thing in self.scene.things)
        question = f"{cap(is_are(name))} there {a(name).replace('some', 'any')} in the picture?"
        answer = f"{'Yes' if present else 'No'}, there {is_are(name)} {a(name) if present else 'no ' + name}."
        return Exchange("count", question, answer, again=f"{cap(a(name))}?")


def drill(speaker: Speaker, count: int) -> list[Drill]:
    """Up to ``count`` questions. None comes twice: its answer would stand there already."""
    makers = (_where, _count, _there, _side, _next)
    answer_by_question: dict[str, str] = {}
    for _ in range(2 * count):
        pair = makers[int(speaker.generator.choice(len(makers), p=_DRILLED))](speaker)
        if pair is not None and len(answer_by_question) < count:
            answer_by_question.setdefault(*pair)
    return list(answer_by_question.items())


def _where(speaker: Speaker) -> Drill | None:
    place = speaker.some_place()
    return None if place is None else (f" {speaker.names[place]}", f" {at(speaker.scene.things[place].region)}.")


def _count(speaker: Speaker) -> Drill:
    name = speaker.some_name(0.3)
    return f" {plural(name, 2)}", f" {NUMBERS[sum(thing.name == name for thing in speaker.scene.things)]}."


def _there(speaker: Speaker) -> Drill:
    name = speaker.some_name(0.5)
    return f" {name}?", f" {'Yes' if any(thing.name == name for thing in speaker.scene.things) else 'No'}."


def _next(speaker: Speaker) -> Drill | None:
    place = speaker.some_place()
    nearest = None if place is None else speaker.nearest(place)
    return None if place is None or nearest is None else (f" {speaker.names[place]}, next:", f" {a(named(nearest))}.")


def _side(speaker: Speaker) -> Drill | None:
    exchange = speaker.side()
    if exchange is None:
        return None
    first, word, second = exchange.answer.partition(next(word for word in _SIDES if f" {word} the " in exchange.answer))
    first = first.removeprefix("The ").removesuffix(" is ").removesuffix(" are ")
    second = second.removeprefix(" the ").removesuffix(".")
    level = "level" if word in ("left of", "right of") else "height"
    return f" {first}, {second}, {level}:", f" {word}."
