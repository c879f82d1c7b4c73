"""Typed notes: every note type of a trace as a frozen dataclass, by the room of the step it tells of.

A note is a method's own account of one step, and a panel of the same name in ``viewer/js/notes`` draws it. Nodes are indices
into the step's nodes, places are positions in the whole text, probabilities lie between 0 and 1, logarithms are natural.
"""

from __future__ import annotations

from specviz.trace.notes import drafts, images, models, verdicts  # noqa: F401
from specviz.trace.notes.base import TypedNote

NOTE_TYPES: dict[str, type[TypedNote]] = {str(note.__struct_config__.tag): note for note in TypedNote.__subclasses__()}
"""Type in a trace -> the class of that note."""
