"""Figures that were measured, from ``assets/results.json``: each is stated there once, and cards quote it by its key."""

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
    """What one command measured on one machine, ``date`` a day or the first and last one.

    ``columns`` are a heading and a unit by key, ``rows`` cells by key. Where the units of a column ``value`` differ by row, they
    stand in a column ``unit``. A table without a ``title`` is not printed. Numbers keep the digits that the file has.
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
        """One cell with its unit; empty where nothing was measured. Raises KeyError for a row or column that is not there."""
        cells = dict(zip(self.columns, self.rows[row], strict=True))
        if not isinstance(value := cells[column], Decimal | int):
            return value or ""
        unit = cells.get("unit") if column == "value" else self.columns[column][1]
        return f"{value:,} {unit or ''}".replace(",", " ").replace(" ×", "×").replace("-", "−").strip()


@cache
def tables() -> dict[str, Table]:
    """Every table by key."""
    found = json.loads(FILE.read_text("utf-8"), parse_float=Decimal)["tables"]
    return {key: Table(**found[key]) for key in found}


def filled(text: str) -> str:
    """``text`` with each ``{table.row.column}`` replaced by the figure. Raises ValueError naming a key that is not there."""

    def quoted(key: re.Match[str]) -> str:
        try:
            return tables()[key[1]].figure(key[2], key[3])
        except KeyError as error:
            raise ValueError(f"{FILE.name} has no figure {key[0]}: there is no {error}") from error

    return re.sub(r"\{(\w+)\.(\w+)\.(\w+)\}", quoted, text)
