"""The lessons that ship, and the recordings that they are given on."""

from __future__ import annotations

from functools import cache

from specviz.trace.schema import Trace
from specviz.ui import lessons
from specviz.ui.archive import Gallery
from specviz.ui.lessons import Lesson
from specviz.ui.settings import Settings

SHIPPED = lessons.load(Settings().lessons)


@cache
def shipped(name: str) -> tuple[Lesson, Trace, Trace | None]:
    """A lesson with the recordings that ship with it."""
    one, recordings = SHIPPED[name], Gallery(Settings().traces)
    return one, recordings.get(one.trace).trace, recordings.get(one.beside).trace if one.beside else None
