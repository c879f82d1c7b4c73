"""The picture of a run that was broken off: what it is made of, and what a damaged trace is told."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import pytest
from PIL import Image
from tests.image_runs import GRID, image_trace
from tests.samples import sample_trace

from specviz import views
from specviz.errors import BadTrace
from specviz.trace.schema import Note, Trace


def without_rows(trace: Trace) -> Trace:
    kept = tuple(replace(step, notes=tuple(n for n in step.notes if n.type != "canvas")) for step in trace.steps)
    return replace(trace, steps=kept)


def test_a_large_picture_whose_rows_never_came_is_squares_of_its_codes() -> None:
    trace = without_rows(image_trace("autoregressive"))
    shown = Image.open(io.BytesIO(base64.b64decode(views.unfinished(trace))))
    assert shown.size == (8 * GRID, 8 * GRID)
    colours = [view for view in views.drawn(trace, len(trace.steps) - 1).data if view.x]
    assert len(shown.convert("RGB").getcolors()) == len({one for view in colours for one in view.marker.color})


def test_where_nothing_is_known_of_a_picture_there_is_none() -> None:
    trace = without_rows(image_trace("autoregressive"))
    assert views.unfinished(sample_trace(3)) == ""
    assert views.unfinished(replace(trace, steps=())) == ""
    assert views.unfinished(replace(trace, run=replace(trace.run, codebook=None))) == ""


@pytest.mark.parametrize("png", ["***", "AAAA", 7])
def test_damaged_rows_are_refused(png: object) -> None:
    trace = image_trace("autoregressive")
    note = Note("canvas", {"row": 0, "rows": 1, "codes": GRID, "png": png})
    with pytest.raises(BadTrace, match="canvas"):
        views.unfinished(replace(trace, steps=(replace(trace.steps[0], notes=(note,)),)))
