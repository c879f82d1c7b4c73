"""Report of a suite: rows with a number and a goal, as Markdown or JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One measured number.

    ``value``: None if it could not be measured. ``goal``: lower bound for the value, or upper bound if ``at_most``; None: no
    goal. ``cells``: text by column, for a row of the Markdown table ``table``.
    """

    name: str
    value: float | None
    unit: str = "×"
    goal: float | None = None
    at_most: bool = False
    detail: str = ""
    cells: Mapping[str, str] = field(default_factory=dict)
    table: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the goal was met; None without a value or a goal."""
        if self.goal is None or self.value is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    @property
    def number(self) -> str:
        """Value with the unit."""
        if self.value is None:
            return "–"
        digits = 1 if self.unit in {"%", "/s", "ms"} else 2
        return f"{self.value:.{digits}f}{'' if self.unit == '×' else ' '}{self.unit}"

    @property
    def bound(self) -> str:
        """Goal with ≤ or ≥; empty without a goal."""
        return "" if self.goal is None else f"{'≤' if self.at_most else '≥'} {self.goal:g}"

    def __str__(self) -> str:
        goal = self.bound and f"  (goal {self.bound}: {'reached' if self.reached else 'NOT reached'})"
        return f"{self.name}: {self.number}{goal}" + (f"  {self.detail}" if self.detail else "")


@dataclass
class Report:
    """Rows of a suite. ``where``: target, machine, library versions and date. ``say``: function that prints a line."""

    suite: str
    where: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    say: Callable[[str], None] = lambda line: None

    def add(self, row: Row) -> None:
        """Add the row and print it."""
        self.rows.append(row)
        self.say(str(row))

    def as_json(self) -> str:
        """Return a JSON object with all rows."""
        rows = [{**asdict(row), "reached": row.reached} for row in self.rows]
        return json.dumps({"suite": self.suite, "where": self.where, "rows": rows}, ensure_ascii=False)

    def as_table(self) -> str:
        """Return Markdown: a table per ``Row.table`` for rows with cells, then one table for all other rows."""
        lines = [f"{self.suite}: " + ", ".join(f"{key} {value}" for key, value in self.where.items())]
        for name in dict.fromkeys(row.table for row in self.rows if row.cells):
            rows = [row for row in self.rows if row.cells and row.table == name]
            columns = list(dict.fromkeys(column for row in rows for column in row.cells))
            lines += ["", name, "", f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
            lines += ["| " + " | ".join(row.cells.get(column, "") for column in columns) + " |" for row in rows]
        if others := [row for row in self.rows if not row.cells]:
            lines += ["", "| what | measured | goal | |", "|---|---:|---:|---|"]
            for row in others:
                mark = {None: "", True: "reached. ", False: "NOT reached. "}[row.reached]
                lines.append(f"| {row.name} | {row.number} | {row.bound} | {mark}{row.detail} |")
        return "\n".join(lines)


@dataclass(frozen=True)
class Ratios:
    """Ratios of paired runs: value of the first run divided by value of the second."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def sign_test(self) -> float:
        """Two-sided p-value of the sign test; ties are left out."""
        more, less = sum(ratio > 1 for ratio in self.values), sum(ratio < 1 for ratio in self.values)
        tail = sum(math.comb(more + less, count) for count in range(min(more, less) + 1))
        return min(1.0, 2 * tail / 2 ** (more + less))

    def __str__(self) -> str:
        """Return range, number of pairs and sign test."""
        return f"{min(self.values):.2f}–{max(self.values):.2f} over {len(self.values)} pairs, sign test p = {self.sign_test:.2g}"


def paired(first: Callable[[], float], second: Callable[[], float], pairs: int) -> Ratios:
    """Return ``first()`` / ``second()`` for each pair of calls. The order within pairs alternates, so that drift cancels."""
    ratios: Sequence[float] = ()
    for number in range(pairs):
        if number % 2:
            below, above = second(), first()
        else:
            above, below = first(), second()
        ratios = (*ratios, above / below)
    return Ratios(tuple(ratios))
