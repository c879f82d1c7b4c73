"""Fields of another program's JSON, read by type and within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specviz.errors import BadInput, BadTrace, shown
from specviz.trace.schema import EXACT, MAX_TEXT
from specviz.trace.validate import strict_json

_ROUNDING = 0.001


class Fields:
    """A JSON object. A missing or null field is None; a field of another type or out of bounds raises BadInput with its path."""

    def __init__(self, found: Mapping[str, Any], path: str = "") -> None:
        self.found, self._path = found, path

    @classmethod
    def parsed(cls, text: str) -> Fields:
        """Parse the object in a JSON text. Raises BadInput on anything else, and on NaN, infinities and huge numbers."""
        try:
            found = strict_json(text)
        except BadTrace as fault:
            raise BadInput(f"not strict JSON: {fault}") from None
        if not isinstance(found, dict):
            raise BadInput(f"{shown(found)} is no JSON object.")
        return cls(found)

    def __bool__(self) -> bool:
        return bool(self.found)

    def __contains__(self, name: str) -> bool:
        return self.found.get(name) is not None

    def whole(self, name: str, most: int = EXACT) -> int | None:
        """A whole number from 0 to ``most``."""
        value = self.found.get(name)
        return None if value is None else self._whole(name, value, most)

    def number(self, name: str, least: float = -math.inf, most: float = math.inf, what: str = "a number") -> float | None:
        """A finite number between these bounds, with a tolerance for rounding."""
        value = self.found.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        if not least - _ROUNDING <= value <= most + _ROUNDING:
            raise self._wrong(name, value, what)
        return min(most, max(least, float(value)))

    def probability(self, name: str) -> float | None:
        """A probability from 0 to 1."""
        return self.number(name, 0.0, 1.0, "a probability from 0 to 1")

    def from_log(self, name: str) -> float | None:
        """A probability, stored as its logarithm."""
        value = self.number(name, most=0.0, what="a log probability, 0 at most")
        return None if value is None else math.exp(value)

    def text(self, name: str, most: int = MAX_TEXT) -> str | None:
        """A text of at most ``most`` characters."""
        value = self.found.get(name)
        if value is not None and (not isinstance(value, str) or len(value) > most):
            raise self._wrong(name, value, f"a text of at most {most} characters")
        return value

    def inner(self, name: str) -> Fields:
        """The object in a field, empty if it is missing."""
        value = self.found.get(name)
        return self._object(name, {} if value is None else value)

    def items(self, name: str, most: int) -> Sequence[Any]:
        """A list of at most ``most`` entries of any type, empty if it is missing."""
        value = self.found.get(name)
        if value is not None and (not isinstance(value, list) or len(value) > most):
            raise self._wrong(name, value, f"a list of at most {most} entries")
        return value or ()

    def objects(self, name: str, most: int) -> list[Fields]:
        """A list of objects."""
        return [self._object(f"{name}[{place}]", entry) for place, entry in enumerate(self.items(name, most))]

    def _object(self, name: str, value: Any) -> Fields:
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Fields(value, f"{self._path}{name}.")

    def wholes(self, name: str, most: int, largest: int) -> list[int]:
        """A list of whole numbers from 0 to ``largest``."""
        return [self._whole(f"{name}[{place}]", entry, largest) for place, entry in enumerate(self.items(name, most))]

    def _whole(self, name: str, value: Any, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        if value != math.floor(value) or not 0 <= value <= most:
            raise self._wrong(name, value, f"a whole number from 0 to {most}")
        return int(value)

    def _wrong(self, name: str, value: Any, what: str) -> BadInput:
        return BadInput(f"{self._path}{name} is {shown(value)}; it should be {what}.")
