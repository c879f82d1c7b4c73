"""Names, numbers and places in words, and what an exchange about a scene is."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.training.vision.scenes import REGIONS, Scene, Thing

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
DESCRIBE = (
    "Describe the picture.", "What does the picture show?", "Describe this picture in detail.", "What can you see?",
    "Tell me about the picture.", "describe the image", "What is in this picture?", "Describe the scene.",
)  # fmt: skip


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
    if place == "middle":
        return "in the middle"
    return f"on the {place}" if place in {"left", "right"} else f"at the {place}"


def plural(name: str, count: int) -> str:
    """ "cats", "foxes", "cherries"; one stays one."""
    if count == 1 or name in {"fish", "sheep", "grapes"}:
        return name
    if name.endswith("y") and name[-2] not in "aeiou":
        return name[:-1] + "ies"
    return name + ("es" if name.endswith(("s", "x", "ch")) else "s")


def named(thing: Thing) -> str:
    """Size, colour and name, without an article."""
    return " ".join(word for word in (thing.size, thing.kind) if word)


def a(words: str) -> str:
    """With the indefinite article."""
    if words.endswith("grapes"):
        return f"some {words}"
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def cap(sentence: str) -> str:
    """With a capital letter."""
    return sentence[:1].upper() + sentence[1:]


def own_names(scene: Scene) -> list[str | None]:
    """For each thing the shortest name that is its alone: "star", "red star", "small red star"; None where there is none."""
    names: list[str | None] = []
    for thing in scene.things:
        tried = dict.fromkeys((thing.name, thing.kind, named(thing)))
        fits = (name for name in tried if sum(name in _called(other) for other in scene.things) == 1)
        names.append(next(fits, None))
    return names


def _called(thing: Thing) -> set[str]:
    return {thing.name, thing.kind, named(thing)}


def is_are(name: str) -> str:
    """The verb that goes with a name."""
    return "are" if name.endswith("grapes") else "is"
