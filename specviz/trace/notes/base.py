"""Base classes of the typed notes, with conversion to and from the JSON of a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Self

from msgspec import Meta, convert, to_builtins

from specviz.trace.schema import Frozen, Note, rounded

Pair = Annotated[Sequence[int], Meta(min_length=2, max_length=2)]


class Part(Frozen, frozen=True, omit_defaults=True, rename=lambda name: name.removesuffix("_")):
    """Base class of records in a note. The trace omits default values, and the final underscore of names like ``with_``."""


def note_type(name: str) -> str:
    """Return the type name of a note class in a trace, such as ``beam_mass`` for ``BeamMassNote``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Note")).lower()


class TypedNote(Part, frozen=True, tag=note_type, tag_field="type"):
    """Base class of notes. The recorder fills in ``text`` and ``texts`` from ``token`` and ``tokens``."""

    def to_note(self) -> Note:
        """Return the note as stored in a trace."""
        data = _listed(to_builtins(self, enc_hook=rounded))
        return Note(data.pop("type"), data)

    @classmethod
    def of(cls, note: Note) -> Self:
        """Convert a note of a trace to this class. Raises msgspec.ValidationError if a field has the wrong type."""
        return convert({**note.data, "type": note.type}, cls)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(entry) for key, entry in value.items()}
    return [_listed(entry) for entry in value] if isinstance(value, list | tuple) else value
