"""What must not be said (again): prompts that numbers are reported on, turns that were asked, answers that were given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_COMMON = frozenset(
    "a about after all also an and any are as at be been but by can could did do does each explain for from give has have he her "
    "his how i if in into is it its let make may me more most my no not of on one only or our out please sentence sentences she "
    "should show so some step tell text than that the their them then there these they this three to translate two up us use was "
    "we were what when where which who why will with work would write you your summarise summarize function python short".split()
)
_STEM = 5
_ALIKE = 0.5
_INSIDE = 0.8
_GRAM = 8
_KEPT = 4
"""One in so many 8-grams is remembered: enough to know a copy by."""


def plain(text: str) -> str:
    """Words alone, in small letters, so that a stray comma does not hide a twin."""
    return " ".join(re.findall(r"\w+", text.lower()))


class Reserved:
    """Prompts that a drafter must never learn from, also in other words or inside a longer text."""

    def __init__(self, prompts: Iterable[str]) -> None:
        self._prompts = [words for words in map(content, prompts) if words]

    def near(self, text: str) -> bool:
        """Whether ``text`` says nearly the same as one of the prompts, or holds one."""
        words = content(text)
        return any(_near(words, prompt) for prompt in self._prompts)


def _near(words: frozenset[str], prompt: frozenset[str]) -> bool:
    shared = len(words & prompt)
    return shared >= _ALIKE * len(words | prompt) or (len(prompt) > 2 and shared >= _INSIDE * len(prompt))


def content(text: str) -> frozenset[str]:
    """The beginnings of all words but the commonest."""
    return frozenset(word[:_STEM] for word in plain(text).split() if word not in _COMMON)


class KnownTexts:
    """All turns and answers so far."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()
        self._grams: set[int] = set()

    def times_asked(self, turn: str) -> int:
        """How often this turn was asked before, up to case and signs; it counts as asked once more from now on."""
        key = plain(turn)
        self._turns[key] += 1
        return self._turns[key] - 1

    def has_answer(self, question: Sequence[int], answer: Sequence[int]) -> bool:
        """Whether more than half of an answer's 8-grams were written in earlier answers; what it copies from its own question
        does not count. If not, it is remembered."""
        grams = _grams(answer) - _grams(question)
        twin = 2 * len(grams & self._grams) > len(grams)
        if not twin:
            self._grams |= grams
        return twin


def _grams(ids: Sequence[int]) -> set[int]:
    hashes = (hash(tuple(ids[place : place + _GRAM])) for place in range(len(ids) - _GRAM + 1))
    return {gram_hash for gram_hash in hashes if gram_hash % _KEPT == 0}
