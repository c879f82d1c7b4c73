"""Typed notes: every note type of a trace as a frozen struct, grouped by subject.

A note is a method's own data on one step, and the panel of the same name in ``viewer/js/notes`` draws it. Nodes are indices
into the step's nodes, places are positions in the whole text, probabilities lie between 0 and 1, logarithms are natural.
"""

from __future__ import annotations

from specviz.trace.notes import drafts, images, models, verdicts  # noqa: F401
from specviz.trace.notes.base import TypedNote

NOTE_TYPES: dict[str, type[TypedNote]] = {str(note.__struct_config__.tag): note for note in TypedNote.__subclasses__()}
"""Note class by its type in a trace."""
