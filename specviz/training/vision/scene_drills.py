"""Drills: the shortest questions about a scene, all to be read off one look.

A sentence asks once in twenty tokens for something to be found, a drill once in four. Names are found by looking for the
same word, and that is learned only from very many cases.
"""

from __future__ import annotations

from specviz.training.vision.scene_names import NUMBERS, a, at, named, plural
from specviz.training.vision.scene_words import Speaker

_SIDES = ("left of", "right of", "above", "below")
_OFTEN = (0.2, 0.15, 0.15, 0.2, 0.3)
"""How often it is asked where, how many, whether, which side, next to what."""

Drill = tuple[str, str]
"""Question and answer, each with the space before it."""


def drill(speaker: Speaker, count: int) -> list[Drill]:
    """Up to ``count`` questions. None comes twice: its answer would stand there already."""
    makers = (_where, _count, _there, _side, _next)
    answer_by_question: dict[str, str] = {}
    for _ in range(2 * count):
        pair = makers[int(speaker.generator.choice(len(makers), p=_OFTEN))](speaker)
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
