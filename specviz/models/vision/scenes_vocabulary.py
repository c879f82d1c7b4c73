"""Limits of the included vision-language model: a question or picture beyond its training is reported, since it still answers."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import Any

from PIL import Image

from specviz.models.vision.pictures import open_picture
from specviz.paths import SCENES

_WORD = re.compile(r"[^\W\d_]+")
_MOST, _LETTERS = 8, 30


def unknown_words(tokenizer: Any, question: str) -> list[str]:
    """The words of a question that were rare in training, since they are no single token. Each once, in order."""

    def is_token(text: str) -> bool:
        return len(tokenizer.encode(text, add_special_tokens=False)) == 1

    words = dict.fromkeys(_WORD.findall(question))
    return [word for word in words if not any(map(is_token, (word, f" {word}", word.capitalize(), f" {word.lower()}")))]


@cache
def _examples() -> frozenset[str]:
    return frozenset(_digest(open_picture(path.read_bytes()).image) for path in SCENES.glob("*.png"))


def _digest(picture: Image.Image) -> str:
    return hashlib.sha256(repr(picture.size).encode() + picture.convert("RGB").tobytes()).hexdigest()


def warnings(model: str, tokenizer: Any, question: str, picture: Image.Image) -> tuple[str, ...]:
    """Warnings about a picture that is not among the example scenes, and about unknown words in a question."""
    warnings = []
    if _digest(picture) not in _examples():
        warnings.append(f"{model} knows emoji and plain shapes only: whatever else a picture shows, its answer is invented.")
    if unknown := unknown_words(tokenizer, question):
        named = ", ".join(f"“{word[:_LETTERS]}”" for word in unknown[:_MOST]) + (", …" if len(unknown) > _MOST else "")
        warnings.append(f"{model} learned no question with {named}, and answers another one.")
    return tuple(warnings)
