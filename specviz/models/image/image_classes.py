"""Class prompts: what a class-conditional model draws is one of ImageNet's thousand classes, by number or by name."""

from __future__ import annotations

import difflib
import hashlib
from functools import cache

from specviz.errors import BadInput
from specviz.models.image.prompts import PromptRows, checked
from specviz.paths import ASSETS

NAMES = ASSETS / "words" / "imagenet.txt"
"""A class a line, in ImageNet's order: its names in WordNet, with commas between them."""
_IMAGENET = 1000


@cache
def class_names() -> tuple[tuple[str, ...], ...]:
    """The names of every class of ImageNet, in its order."""
    return tuple(tuple(name.strip() for name in line.split(",")) for line in NAMES.read_text("utf-8").splitlines())


class ClassPrompts:
    """Prompts of ``classes`` classes (``models.prompts.PromptReader``); one more stands for no class."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._names = class_names() if classes == _IMAGENET else ()
        self.digest = hashlib.sha256(repr((classes, self._names)).encode()).hexdigest()[:16]

    def rows(self, prompt: str) -> PromptRows:
        return PromptRows((self._number(checked(prompt)),), (self._classes,))

    def of(self, token: int) -> str:
        if token == self._classes:
            return "<no class>"
        return self._names[token][0] if self._names else f"class {token}"

    def _number(self, prompt: str) -> int:
        """The class that a prompt names. Raises BadInput where it names none, or several."""
        wanted = " ".join(prompt.lower().split())
        if wanted.isascii() and wanted.isdigit():
            if int(wanted) >= self._classes:
                raise BadInput(f"There is no class {prompt}; this model draws classes 0 to {self._classes - 1}.")
            return int(wanted)
        numbers_of: dict[str, list[int]] = {}
        for number, names in enumerate(self._names):
            for name in dict.fromkeys(name.lower() for name in names):
                numbers_of.setdefault(name, []).append(number)
        if not numbers_of:
            raise BadInput(f"This model draws classes and knows no names: ask for a number from 0 to {self._classes - 1}.")
        if len(found := numbers_of.get(wanted, [])) > 1:
            which = " or ".join(f"{number} ({', '.join(self._names[number])})" for number in found)
            raise BadInput(f"{prompt!r} names several classes: ask by number, {which}.")
        if not found:
            near = difflib.get_close_matches(wanted, numbers_of, 3, 0.5) or [name for name in numbers_of if wanted in name][:3]
            hint = f", such as {', '.join(near)}" if near else ', such as "golden retriever"'
            raise BadInput(f"{prompt[:60]!r} is no class of ImageNet, and this model draws nothing else: ask for one{hint}.")
        return found[0]
