"""Measured figures from ``assets/results.json``, which cards quote by key."""

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
    """Measurements by one command on one machine.

    ``title``: heading in RESULTS.md; a table without a title is not printed. ``date``: a day, or the first and the last day.
    ``commit``: commit at which ``command`` printed the table, if noted.
    ``columns``: (heading, unit) by key. ``rows``: cells by key, in column order. The column ``unit``, if any, has the units of
    the column ``value``. Decimals keep the digits of the file.
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
        """Return a cell with the unit; empty without a measurement. Raises KeyError for an unknown row or column."""
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
    """Replace each ``{table.row.column}`` in ``text`` by the figure. Raises ValueError for an unknown key."""

    def quoted(key: re.Match[str]) -> str:
        try:
            return tables()[key[1]].figure(key[2], key[3])
        except KeyError as error:
            raise ValueError(f"{FILE.name} has no figure {key[0]}: {error} is unknown") from error

    return re.sub(r"\{(\w+)\.(\w+)\.(\w+)\}", quoted, text)
