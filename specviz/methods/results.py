"""Measured figures from ``assets/results.json``: each is stated there once, and cards quote it by key."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

from specviz.paths import ASSETS

FILE = ASSETS / "results.json"


@dataclass(frozen=True)
class Table:
    """Measurements of one command on one machine; ``date`` is a day, or the first and last one.

    ``columns`` are a heading and a unit by key, ``rows`` cells by key. If the units of a column ``value`` differ by row, a
    column ``unit`` holds them. A table without a ``title`` is not printed. Numbers keep the file's digits.
    """

    title: str
    says: str
    command: str
    machine: str
    date: str
    columns: dict[str, list[str]]
    rows: dict[str, list[Decimal | int | str | None]]
    commit: str = ""

    def figure(self, row: str, column: str) -> str:
        """Return one cell with its unit; empty without a measurement. Raises KeyError for an unknown row or column."""
        cells = dict(zip(self.columns, self.rows[row], strict=True))
        if not isinstance(value := cells[column], Decimal | int):
            return value or ""
        unit = cells.get("unit") if column == "value" else self.columns[column][1]
        return f"{value:,} {unit or ''}".replace(",", " ").replace(" ×", "×").replace("-", "−").strip()


@cache
def tables() -> dict[str, Table]:
    """Return every table by key."""
    found = json.loads(FILE.read_text("utf-8"), parse_float=Decimal)["tables"]
    return {key: Table(**found[key]) for key in found}


def filled(text: str) -> str:
    """Replace each ``{table.row.column}`` in ``text`` by its figure. Raises ValueError with an unknown key."""

    def quoted(key: re.Match[str]) -> str:
        try:
            return tables()[key[1]].figure(key[2], key[3])
        except KeyError as error:
            raise ValueError(f"{FILE.name} has no figure {key[0]}: there is no {error}") from error

    return re.sub(r"\{(\w+)\.(\w+)\.(\w+)\}", quoted, text)
