"""Base of the typed notes: a frozen dataclass and the plain JSON that it is in a trace, each made of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Self, get_args, get_type_hints

from specviz.trace.schema import Note


@dataclass(frozen=True)
class TypedNote:
    """A note of a known type. ``type`` is its name in a trace.

    A field with a default is left out of the trace while it has that value. ``texts`` stand beside ``tokens``, and ``text``
    beside ``token``: the recorder puts them there, since drafters know ids only.
    """

    type: ClassVar[str] = ""

    def to_note(self) -> Note:
        """The note as it stands in a trace."""
        return Note(self.type, plain(self))

    @classmethod
    def of(cls, note: Note) -> Self:
        """The dataclass of a note whose fields are as its type says; fields that this type does not have are left out."""
        typed_note: Self = _typed(cls, dict(note.data.items()))  # a packed note is read anew by every other way in
        return typed_note


def wire_name(name: str) -> str:
    """A field's key in a trace: a name that Python keeps for itself has an underscore behind it."""
    return name.removesuffix("_")


def plain(record: Any) -> dict[str, Any]:
    """A note, or a record inside one, as the mapping that stands in a trace."""
    entries: dict[str, Any] = {}
    kind: Any = type(record)
    for key, name, default in _keys(kind):
        value = getattr(record, name)
        if default is MISSING or value != default:
            entries[key] = _plain(value)
    return entries


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return plain(value)
    if isinstance(value, list | tuple):
        nested = bool(value) and (is_dataclass(value[0]) or isinstance(value[0], list | tuple))
        return [_plain(entry) for entry in value] if nested else list(value)
    return value


@cache
def _keys(record: Any) -> tuple[tuple[str, str, Any], ...]:
    return tuple((wire_name(field.name), field.name, field.default) for field in fields(record))


@cache
def hints(record: Any) -> Mapping[str, Any]:
    """The type of each field, with its bounds."""
    return get_type_hints(record, include_extras=True)


def _typed(kind: Any, value: Any) -> Any:
    """``value`` out of a trace as what a field of type ``kind`` holds."""
    if isinstance(kind, type) and is_dataclass(kind):
        keys = {field.name: (wire_name(field.name), hints(kind)[field.name]) for field in fields(kind)}
        return kind(**{name: _typed(hint, value[key]) for name, (key, hint) in keys.items() if key in value})
    if isinstance(value, Mapping):
        inner = [argument for argument in get_args(kind) if is_dataclass(argument)]
        return _typed(inner[0], value) if inner else value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_typed(_entry(kind), entry) for entry in value)
    return value


def _entry(kind: Any) -> Any:
    """The type of a sequence's entries where that is a record, else nothing to go by."""
    for argument in get_args(kind):
        if isinstance(argument, type) and is_dataclass(argument):
            return argument
        if get_args(argument):
            return _entry(argument)
    return None
