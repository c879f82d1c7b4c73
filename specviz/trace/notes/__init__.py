"""Typed notes: the note types of a trace as frozen structs.

A note is method-specific data on one step, displayed by the panel of the same name in ``viewer/js/notes``. A node is an index
into the step's nodes. Logarithms are natural.
"""

from __future__ import annotations

from specviz.trace.notes import drafts, images, models, verdicts  # noqa: F401
from specviz.trace.notes.base import TypedNote

NOTE_TYPES: dict[str, type[TypedNote]] = {str(note.__struct_config__.tag): note for note in TypedNote.__subclasses__()}
"""Note class by type name in a trace."""
