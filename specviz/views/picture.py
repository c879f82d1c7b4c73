"""The picture a run is about, as the model saw it, cut into the patches that became tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from specviz.trace.schema import Trace
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, count, duration, figure, theme_of

Box = tuple[float, float, float, float]
_SIDE = 420
_MOST = 4096
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Seen:
    """A picture read from its note. ``boxes`` are patches by prompt place, as shares of width and height."""

    address: str
    size: tuple[int, int]
    grid: tuple[int, int]
    boxes: dict[int, Box]
    prompt: int


def picture(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """The picture with its patches; it travels with the run's first step."""
    _, note = story(trace, index, "picture")
    look, found = theme_of(theme), read(note)
    rows, columns = found.grid
    cut = f"{rows} × {columns} patches" if rows else "several tiles of patches"
    title = f"The picture as the model sees it · {cut}"
    said = f"they are {len(found.boxes)} of the prompt's {count(found.prompt, 'token')}"
    said += f"; encoded in {duration(note.whole('encoding_ns', 0))}, once for every method"
    made = figure(look, title, said, width=620, height=_SIDE + 90)
    made.update_layout(**frame(found, "", (0.0, 1.0)))
    made.update_layout(images=[placed(found, "")], shapes=patches(look, found, "", set(found.boxes)))
    return made.add_scatter(x=[0.5], y=[0.5], mode="markers", marker={"opacity": 0}, hoverinfo="skip")


def read(note: Story) -> Seen:
    """The note as a picture. Raises BadTrace when something in it is not as it should be: its text becomes an address."""
    pieces = note.data.get("png")
    data = "".join(pieces) if isinstance(pieces, list | tuple) and all(isinstance(one, str) for one in pieces) else ""
    if not _BASE64.fullmatch(data) or len(data) > 200_000:
        raise note.wrong("png", "a list of base64 texts")
    size, grid = note.wholes("size"), note.wholes("grid")
    if len(size) != 2 or not all(size) or len(grid) != 2 or grid[0] * grid[1] > _MOST:
        raise note.wrong("size", "a width and a height with a grid of patches")
    places = places_of(note, "spans")
    given = note.data.get("boxes")
    boxes = _given(note, given) if given is not None else _regular(*grid)
    return Seen(
        f"data:image/png;base64,{data}", (size[0], size[1]), (grid[0], grid[1]),
        dict(zip(places, boxes, strict=False)), note.whole("prompt"),
    )  # fmt: skip


def places_of(note: Story, name: str) -> list[int]:
    """Prompt places from rows of [first, how many]."""
    found: list[int] = []
    for row in note.levels(name, 1 << 24):
        if len(row) != 2 or len(found) + row[1] > 1 << 16:
            raise note.wrong(name, "rows of a first place and a number of places")
        found += range(row[0], row[0] + row[1])
    return found


def _regular(rows: int, columns: int) -> list[Box]:
    return [
        (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
        for row in range(rows)
        for column in range(columns)
    ]


def _given(note: Story, boxes: Any) -> list[Box]:
    if not isinstance(boxes, list | tuple) or len(boxes) > _MOST:
        raise note.wrong("boxes", "a list of patches")
    return [tuple(Story({"box": box}, note.where).numbers("box", 4)) for box in boxes]  # type: ignore[misc]


def frame(found: Seen, number: str, across: tuple[float, float]) -> dict[str, Any]:
    """Axes in which the picture fills ``across`` of the figure's width and keeps its shape; y grows downwards."""
    wide, high = found.size
    plain = {"visible": False, "fixedrange": True}
    low = {**plain, "range": [high, 0], "scaleanchor": f"x{number}", "anchor": f"x{number}", "constrain": "domain"}
    side = {**plain, "range": [0, wide], "domain": list(across), "anchor": f"y{number}", "constrain": "domain"}
    return {f"xaxis{number}": side, f"yaxis{number}": low}


def placed(found: Seen, number: str) -> dict[str, Any]:
    """The picture for Plotly's ``images``."""
    wide, high = found.size
    return {
        "source": found.address, "xref": f"x{number}", "yref": f"y{number}", "x": 0, "y": 0, "sizex": wide, "sizey": high,
        "sizing": "stretch", "layer": "below",
    }  # fmt: skip


def patches(look: Theme, found: Seen, number: str, kept: set[int]) -> list[dict[str, Any]]:
    """The grid of patches as two shapes: those the drafter gets as an outline, the others covered."""
    seen = {True: "", False: ""}
    for place, box in found.boxes.items():
        left, top, right, low = (side * found.size[axis % 2] for axis, side in enumerate(box))
        seen[place in kept] += f"M{left:.4g},{top:.4g}H{right:.4g}V{low:.4g}H{left:.4g}Z"
    plain = {"type": "path", "xref": f"x{number}", "yref": f"y{number}"}
    line = {"color": "rgba(255,255,255,0.6)", "width": 1}
    made = [{**plain, "path": seen[True], "line": line, "fillcolor": "rgba(0,0,0,0)"}]
    dotted = {"color": look.quiet, "width": 1, "dash": "1.5px,2px"}
    made.append({**plain, "path": seen[False], "line": dotted, "fillcolor": look.paper, "opacity": 0.88})
    return [one for one in made if one["path"]]
