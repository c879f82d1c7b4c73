"""The picture codes of an image run for drawings: the colour each paints, its place on the map, cells as squares."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go

from specviz.trace.schema import Codebook, Run
from specviz.views.notes import Story
from specviz.views.theme import Theme

WHOLE = 65535
GREY = "rgb(200,200,200)"


@dataclass(frozen=True)
class Codes:
    """Places from 0 to 1 and CSS colours by code; empty where the run has no codebook, or a damaged one."""

    places: tuple[tuple[float, float], ...] = ()
    colours: tuple[str, ...] = ()

    def colour(self, code: int) -> str:
        """The code's colour, grey where it is not known."""
        return self.colours[code] if 0 <= code < len(self.colours) else GREY


def codes_of(run: Run) -> Codes:
    """The codes of a run."""
    return Codes() if run.codebook is None else _read(run.codebook)


@lru_cache(maxsize=8)
def _read(book: Codebook) -> Codes:
    try:
        places, paints = base64.b64decode(book.places, validate=True), base64.b64decode(book.colours, validate=True)
    except (binascii.Error, ValueError):
        return Codes()
    size = min(book.size, len(places) // 4, len(paints) // 3)
    flat = struct.unpack(f"<{2 * size}H", places[: 4 * size])
    spots = tuple((round(flat[2 * at] / WHOLE, 4), round(flat[2 * at + 1] / WHOLE, 4)) for at in range(size))
    return Codes(spots, tuple(f"rgb({paints[3 * at]},{paints[3 * at + 1]},{paints[3 * at + 2]})" for at in range(size)))


def look_alikes_of(row: Story) -> list[int]:
    """All look-alikes that were considered for a judged code, nearest first; in older traces only the ten nearest."""
    near = row.data.get("near")
    if not isinstance(near, str):
        return row.wholes("near")
    try:
        raw = base64.b64decode(near, validate=True)
        return list(struct.unpack(f"<{len(raw) // 2}H", raw))
    except (binascii.Error, ValueError, struct.error):
        raise row.wrong("near", "base64 of 16-bit numbers") from None


def squares(
    made: go.Figure,
    look: Theme,
    cells: Sequence[tuple[int, int]],
    colours: Sequence[str],
    size: float,
    *,
    name: str = "",
    told: Sequence[str] = (),
    line: str = "",
    **more: Any,
) -> None:
    """Cells (row, column) as squares ``size`` pixels wide, row 0 at the top; ``told`` is for the pointer."""
    made.add_scatter(
        x=[column for _, column in cells], y=[row for row, _ in cells], mode="markers", name=name, cliponaxis=False,
        showlegend=bool(name), hoverinfo="text" if told else "skip", hovertext=list(told) or None,
        marker={"symbol": "square", "size": size, "color": list(colours), "line": {"width": 1, "color": line or look.line}},
        **more,
    )  # fmt: skip


def board(made: go.Figure, rows: tuple[int, int], columns: int) -> None:
    """Axes for cells: row numbers downwards from ``rows[0]`` to ``rows[1]``, not included; no ticks."""
    hidden = {"visible": False, "fixedrange": True}
    made.update_xaxes(range=[-0.6, columns - 0.4], **hidden)
    made.update_yaxes(range=[rows[1] - 0.4, rows[0] - 0.6], **hidden)
