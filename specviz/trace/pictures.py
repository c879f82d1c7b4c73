"""Image fields of the run line: the grid, the guidance, the map of the codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specviz.trace.schema import Codebook, Run


def line(run: Run) -> dict[str, Any]:
    """The fields as the line has them; those that are None are left out."""
    book = run.codebook
    fields: dict[str, Any] = {"grid": run.grid, "codebook": None}
    fields["guidance"] = None if run.guidance is None else float(f"{run.guidance:.5g}")
    if book is not None:
        fields["codebook"] = {"size": book.size, "places": book.places, "colours": book.colours}
    return {name: value for name, value in fields.items() if value is not None}


def read(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :class:`Run` out of a line that has passed the schema."""
    grid, book = fields.get("grid"), fields.get("codebook")
    return {
        "grid": None if grid is None else (int(grid[0]), int(grid[1])),
        "guidance": fields.get("guidance"),
        "codebook": None if book is None else Codebook(int(book["size"]), book["places"], book["colours"]),
    }
