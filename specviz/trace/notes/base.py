"""Base classes of the typed notes: frozen records, converted to and from the plain JSON of a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Self

from msgspec import Meta, convert, to_builtins

from specviz.trace.schema import Frozen, Note, rounded

Pair = Annotated[Sequence[int], Meta(min_length=2, max_length=2)]


class Part(Frozen, frozen=True, omit_defaults=True, rename=lambda name: name.removesuffix("_")):
    """A record inside a note. The trace omits fields that have their default value.

    A field named like a Python keyword has a trailing underscore, which the trace omits.
    """


def note_type(name: str) -> str:
    """Return a note class's type in a trace: ``beam_mass`` for ``BeamMassNote``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Note")).lower()


class TypedNote(Part, frozen=True, tag=note_type, tag_field="type"):
    """A note of a known type; in a trace it may have more fields than here.

    The recorder adds ``texts`` beside ``tokens`` and ``text`` beside ``token``, since drafters know only ids.
    """

    def to_note(self) -> Note:
        """Return the note in its trace form."""
        data = _listed(to_builtins(self, enc_hook=rounded))
        return Note(data.pop("type"), data)

    @classmethod
    def of(cls, note: Note) -> Self:
        """Return the typed form of a trace's note. Raises msgspec.ValidationError if a field does not match the type."""
        return convert({**note.data, "type": note.type}, cls)


def _listed(value: Any) -> Any:
    """Return a value with tuples replaced by lists, as in JSON."""
    if isinstance(value, dict):
        return {key: _listed(entry) for key, entry in value.items()}
    return [_listed(entry) for entry in value] if isinstance(value, list | tuple) else value
