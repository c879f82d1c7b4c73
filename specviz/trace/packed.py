"""Packed notes of a trace that was read, kept as the JSON they came as: Python objects take twenty times the memory."""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any

from specviz.trace.schema import Note

PACKED = 2048
"""Characters of JSON from which a note stays JSON."""


class PackedNote(Mapping[str, Any]):
    """A note's data as JSON text, read anew by whoever asks for a part of it."""

    __slots__ = ("_json",)

    def __init__(self, text: str) -> None:
        self._json = text.encode("utf-8")

    def _read(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self._json)
        return fields

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def items(self) -> ItemsView[str, Any]:
        """All of it, read once."""
        return self._read().items()

    def values(self) -> ValuesView[Any]:
        """The values, read once."""
        return self._read().values()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._read() == dict(other.items())

    def __repr__(self) -> str:
        return repr(self._read())


def note(fields: Mapping[str, Any]) -> Note:
    """The note in a line that has passed the checks, its data as it is where it is small."""
    data = {name: value for name, value in fields.items() if name != "type"}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Note(fields["type"], data if len(text) < PACKED else PackedNote(text))
