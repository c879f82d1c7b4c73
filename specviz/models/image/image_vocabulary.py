"""Vocabulary of the shipped image models: prompt words and combinations beyond it are reported, not silently dropped.

Their prompt tokenizer spells any word in pieces and does not reveal this: "owl" was in training and is three pieces, as is
"blorp", which was not.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

from specviz.paths import ASSETS

WORDS = ASSETS / "words" / "emoji.txt"
"""One line of name and keywords per training picture; then styles ("noto style") and grounds ("on blue"). Written by the
recipe ``image_ar``."""
_WORD = re.compile(r"[^\W\d_]+|[\u2600-\u27bf\U0001f000-\U0001faff]")
"""A sequence of letters, or one pictograph."""
_FILLERS = frozenset("a an and in is of on that the with".split())
_MOST, _LETTERS = 8, 30


def words_of(text: str) -> list[str]:
    """The words of a text as the tokenizer reads them, in lower case; each once, in order."""
    return list(dict.fromkeys(_WORD.findall(unicodedata.normalize("NFKC", text).lower())))


@cache
def _lines() -> tuple[str, ...]:
    return tuple(WORDS.read_text("utf-8").splitlines())


@cache
def known_words() -> frozenset[str]:
    """All words of the training pictures' prompts."""
    return frozenset(words_of(" ".join(_lines())))


@cache
def _pictures() -> tuple[frozenset[str], ...]:
    """The words of each training picture."""
    return tuple(frozenset(words_of(line)) for line in _lines() if not _is_look(line))


def _is_look(line: str) -> bool:
    return line.endswith(" style") or line.startswith("on ")


def learned_together(prompt: str) -> bool:
    """Whether one training picture's prompt has all words of this prompt, style and background aside."""
    subject = " ".join(words_of(prompt))
    for look in filter(_is_look, _lines()):
        subject = re.sub(rf"\b{look}\b", "", subject)
    words = set(words_of(subject)) - _FILLERS
    return not words or any(words <= picture for picture in _pictures())


def unknown_words(prompt: str) -> list[str]:
    """The words of a prompt that no training picture's prompt has."""
    return [word for word in words_of(prompt) if word not in known_words()]


def warning(model: str, prompt: str) -> str:
    """Warning about unknown words in a prompt, or words that no single picture combines; empty if neither applies."""
    unknown, every = unknown_words(prompt), words_of(prompt)
    if not unknown:
        apart = f"{model} learned the words of this prompt, but no picture by all of them: what it draws is a guess."
        return "" if learned_together(prompt) else apart
    named = ", ".join(f"“{word[:_LETTERS]}”" for word in unknown[:_MOST]) + (", …" if len(unknown) > _MOST else "")
    phrase = "any word of this prompt" if len(unknown) == len(every) else "these words of the prompt"
    return f"{model} learned no picture by {phrase}: {named}. It reads them in pieces, and what it makes of them is a guess."
