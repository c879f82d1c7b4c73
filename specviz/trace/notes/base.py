"""Base of the typed notes: a frozen record and the plain JSON that it is in a trace, each made of the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Self

from msgspec import Meta, convert, to_builtins

from specviz.trace.schema import Frozen, Note, rounded

Pair = Annotated[Sequence[int], Meta(min_length=2, max_length=2)]


class Part(Frozen, frozen=True, omit_defaults=True, rename=lambda name: name.removesuffix("_")):
    """A record inside a note. A field is left out of the trace while it has its default.

    A name that Python reserves has an underscore behind it, which the trace does not.
    """


def note_type(name: str) -> str:
    """The type of a note in a trace by its class: ``beam_mass`` of BeamMassNote."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Note")).lower()


class TypedNote(Part, frozen=True, tag=note_type, tag_field="type"):
    """A note of a known type, which may have more fields in a trace than here.

    ``texts`` stand beside ``tokens``, and ``text`` beside ``token``: the recorder puts them there, since drafters know ids only.
    """

    def to_note(self) -> Note:
        """The note as it stands in a trace."""
        data = _listed(to_builtins(self, enc_hook=rounded))
        return Note(data.pop("type"), data)

    @classmethod
    def of(cls, note: Note) -> Self:
        """The typed note in a trace's. Raises msgspec.ValidationError where the fields are not as its type says."""
        return convert({**note.data, "type": note.type}, cls)


def _listed(value: Any) -> Any:
    """A value with lists for tuples, as JSON has it."""
    if isinstance(value, dict):
        return {key: _listed(entry) for key, entry in value.items()}
    return [_listed(entry) for entry in value] if isinstance(value, list | tuple) else value
