"""Image of a run that ended early: finished rows of pixels, then cells of plain colour."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

from PIL import Image

from specviz.errors import BadTrace
from specviz.trace.schema import Codebook, Step, Trace

Colour = tuple[int, int, int]

MISSING = (238, 238, 238)
"""Colour of cells without a code."""
UNKNOWN = (200, 200, 200)
"""Colour of a code that is missing from the codebook."""
_SIDE = 8
"""Side of a cell in pixels, for a run without a finished row."""
_MOST = 4096
"""Maximum width and height of a PNG in pixels: a small file may decompress to gigabytes."""


def unfinished(trace: Trace) -> str:
    """Return a PNG in base64: finished rows from the notes, then cells in the mean colour of the code, then grey cells.

    Returns an empty string for runs without an image, and for runs without a finished row or a code of known colour. Raises
    BadTrace if a band of rows is damaged.
    """
    if trace.run.grid is None:
        return ""
    rows, columns = trace.run.grid
    bands = [(row, band) for step in trace.steps for row, band in _bands(step, columns)]
    colours, drawn = _colours(trace.run.codebook), [token for step in trace.steps for token in step.emitted][: rows * columns]
    if not bands and not (colours and drawn):
        return ""
    side = bands[-1][1].width // columns if bands else _SIDE
    picture = Image.new("RGB", (columns * side, rows * side), MISSING)
    for cell, code in enumerate(drawn):
        row, column = divmod(cell, columns)
        paint = colours[code] if 0 <= code < len(colours) else UNKNOWN
        picture.paste(paint, (column * side, row * side, (column + 1) * side, (row + 1) * side))
    for row, band in bands:
        picture.paste(band, (0, row * side))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def _colours(book: Codebook | None) -> list[Colour]:
    """Return the mean colour of every code; an empty list if the codebook is missing or damaged."""
    try:
        raw = iter(base64.b64decode(book.colours, validate=True) if book else b"")
    except ValueError:
        return []
    return list(zip(raw, raw, raw, strict=False))[: book.size if book else 0]


def _bands(step: Step, columns: int) -> Iterator[tuple[int, Image.Image]]:
    """Yield the number of the first row, and the pixels, of every band of finished rows."""
    for note in step.notes:
        if note.type != "canvas":
            continue
        where = f"note canvas of step {step.index + 1}"
        row = note.data["row"]
        if row < 0:
            raise BadTrace(f"{where}: row is negative; the trace was not written by specviz or is damaged.")
        pixels = read_png(note.data["png"])
        if pixels is None or pixels.width % columns:
            raise BadTrace(f"{where}: png is not a picture with {columns} cells per row; the trace is damaged.")
        yield row, pixels


def read_png(data: str) -> Image.Image | None:
    """Return the RGB pixels of a trace's PNG in base64; None if it is damaged or too large."""
    try:
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True)), formats=["PNG"]) as png:
            return png.convert("RGB") if max(png.size) <= _MOST else None
    except (ValueError, SyntaxError, OSError, Image.DecompressionBombError):
        return None
