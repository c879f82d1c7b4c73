"""Vocabulary of the shipped image models: prompt words beyond it are reported, not silently dropped.

Their prompt tokenizer spells any word in pieces, so it cannot tell: "owl" was learned and is three pieces, "blorp" is too.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path

WORDS = Path(__file__).resolve().parents[3] / "assets" / "words" / "emoji.txt"
"""A word a line: of the names and keywords of every picture the models learned from, of styles and of grounds. Written by
the recipe ``image_ar``."""
_WORD = re.compile(r"[^\W\d_]+|[\u2600-\u27bf\U0001f000-\U0001faff]")
"""Letters that hang together, or one pictograph."""
_MOST, _LETTERS = 8, 30


def words_of(text: str) -> list[str]:
    """The words of a text as the tokenizer reads them, in small letters; each once, in order."""
    return list(dict.fromkeys(_WORD.findall(unicodedata.normalize("NFKC", text).lower())))


@cache
def learned() -> frozenset[str]:
    """Every word that some learned picture was asked for by."""
    return frozenset(WORDS.read_text("utf-8").split())


def unlearned(prompt: str) -> list[str]:
    """The words of a prompt that no learned picture was asked for by."""
    return [word for word in words_of(prompt) if word not in learned()]


def warning(model: str, prompt: str) -> str:
    """What to tell of a prompt with such words; empty where there are none."""
    unknown, every = unlearned(prompt), words_of(prompt)
    if not unknown:
        return ""
    named = ", ".join(f"“{word[:_LETTERS]}”" for word in unknown[:_MOST]) + (", …" if len(unknown) > _MOST else "")
    phrase = "any word of this prompt" if len(unknown) == len(every) else "these words of the prompt"
    return f"{model} learned no picture by {phrase}: {named}. It reads them in pieces, and what it makes of them is a guess."
