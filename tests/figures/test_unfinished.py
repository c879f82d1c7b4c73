"""The picture of a run that was broken off: what it is made of, and what a damaged trace is told."""

import base64
import io

import pytest
from msgspec.structs import replace
from PIL import Image

from specviz import figures
from specviz.errors import BadTrace
from specviz.trace.schema import Note
from tests.support.traces.image_runs import GRID, image_trace
from tests.support.traces.samples import sample_trace


def without_rows(trace):
    kept = tuple(replace(step, notes=tuple(n for n in step.notes if n.type != "canvas")) for step in trace.steps)
    return replace(trace, steps=kept)


def test_a_large_picture_whose_rows_never_came_is_squares_of_its_codes():
    trace = without_rows(image_trace("autoregressive"))
    shown = Image.open(io.BytesIO(base64.b64decode(figures.unfinished(trace))))
    assert shown.size == (8 * GRID, 8 * GRID)
    book, codes = trace.run.codebook, [token for step in trace.steps for token in step.emitted]
    mean = base64.b64decode(book.colours)
    for cell, code in enumerate(codes):
        row, column = divmod(cell, GRID)
        assert shown.convert("RGB").getpixel((8 * column, 8 * row)) == tuple(mean[3 * code : 3 * code + 3])


def test_where_nothing_is_known_of_a_picture_there_is_none():
    trace = without_rows(image_trace("autoregressive"))
    assert figures.unfinished(sample_trace(3)) == ""
    assert figures.unfinished(replace(trace, steps=())) == ""
    assert figures.unfinished(replace(trace, run=replace(trace.run, codebook=None))) == ""


@pytest.mark.parametrize(("row", "png"), [(0, "***"), (0, "AAAA"), (-1, "AAAA")])
def test_damaged_rows_are_refused(row, png):
    trace = image_trace("autoregressive")
    note = Note("canvas", {"row": row, "rows": 1, "codes": GRID, "png": png})
    with pytest.raises(BadTrace, match="canvas"):
        figures.unfinished(replace(trace, steps=(replace(trace.steps[0], notes=(note,)),)))
