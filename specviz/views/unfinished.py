"""The picture of a run that was broken off, put together from what its steps brought: finished rows, then plain squares."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterator

from PIL import Image, ImageColor, UnidentifiedImageError

from specviz.errors import BadTrace
from specviz.trace.schema import Step, Trace
from specviz.views.code_map import codes_of
from specviz.views.notes import Story

MISSING = (238, 238, 238)
"""The colour of cells that were not drawn."""
_SIDE = 8
"""Pixels a cell where no finished row says it."""
_MOST = 4096
"""Pixels a side of a picture that a trace may ask for."""


def unfinished(trace: Trace) -> str:
    """Base64 of a PNG: rows as the steps' notes have them, other cells in the mean colour of their code, the rest grey.

    Empty for a run that draws nothing, or whose steps brought neither rows nor codes whose colour is known. Raises BadTrace
    when a row in it is damaged.
    """
    if trace.run.grid is None:
        return ""
    rows, columns = trace.run.grid
    bands = [(row, band) for step in trace.steps for row, band in _bands(step, columns)]
    book, drawn = codes_of(trace.run), [token for step in trace.steps for token in step.emitted][: rows * columns]
    if not bands and not (book.colours and drawn):
        return ""
    side = bands[-1][1].width // columns if bands else _SIDE
    picture = Image.new("RGB", (columns * side, rows * side), MISSING)
    for cell, code in enumerate(drawn):
        row, column = divmod(cell, columns)
        picture.paste(ImageColor.getrgb(book.colour(code)), (column * side, row * side, (column + 1) * side, (row + 1) * side))
    for row, band in bands:
        picture.paste(band, (0, row * side))
    kept = io.BytesIO()
    picture.save(kept, "PNG", optimize=True)
    return base64.b64encode(kept.getvalue()).decode()


def _bands(step: Step, columns: int) -> Iterator[tuple[int, Image.Image]]:
    """The finished rows that a step brought: the first one's number, and their pixels."""
    for note in step.notes:
        if note.type != "canvas":
            continue
        story = Story(note.data, f"note canvas of step {step.index + 1}")
        try:
            band = Image.open(io.BytesIO(base64.b64decode(str(note.data.get("png")), validate=True)))
            sound = band.width % columns == 0 and 0 < band.width <= _MOST and band.height <= _MOST
            pixels = band.convert("RGB") if sound else None
        except (binascii.Error, ValueError, UnidentifiedImageError, OSError):
            pixels = None
        if pixels is None:
            raise BadTrace(f"{story.where}: png is not a picture of {columns} cells a row; the trace is damaged.")
        yield story.whole("row"), pixels
