"""Benchmark report: rows with a number, a goal and whether it was reached, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One measured number. ``goal`` is the least (or with ``at_most`` the most) it should be, None when it only informs.

    ``cells`` are the same in columns, for rows that stand in a table of their own kind, called ``table``.
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
        """Whether the goal was met; None without one."""
        if self.goal is None or self.value is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal


@dataclass
class Report:
    """All rows of a suite and where they were measured."""

    suite: str
    where: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    say: Callable[[str], None] = lambda line: None

    def add(self, row: Row) -> None:
        """Keep the row and say it at once: a suite takes minutes."""
        self.rows.append(row)
        self.say(line(row))

    def as_json(self) -> str:
        """One object with every row."""
        rows = [{**asdict(row), "reached": row.reached} for row in self.rows]
        return json.dumps({"suite": self.suite, "where": self.where, "rows": rows}, ensure_ascii=False)

    def as_table(self) -> str:
        """Markdown, for the README: tables of rows in columns first, then all others."""
        head = f"{self.suite}: " + ", ".join(f"{key} {value}" for key, value in self.where.items())
        lines = [head]
        for name in dict.fromkeys(row.table for row in self.rows if row.cells):
            rows = [row for row in self.rows if row.cells and row.table == name]
            columns = list(dict.fromkeys(column for row in rows for column in row.cells))
            lines += ["", name, "", f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
            lines += ["| " + " | ".join(row.cells.get(column, "") for column in columns) + " |" for row in rows]
        others = [row for row in self.rows if not row.cells]
        if others:
            lines += ["", "| what | measured | goal | |", "|---|---:|---:|---|"]
            lines += [f"| {row.name} | {number_text(row)} | {_goal(row)} | {_mark(row)}{row.detail} |" for row in others]
        return "\n".join(lines)


def number_text(row: Row) -> str:
    """The number with its unit."""
    if row.value is None:
        return "–"
    digits = 1 if row.unit in {"%", "/s", "ms"} else 2
    return f"{row.value:.{digits}f}{'' if row.unit == '×' else ' '}{row.unit}"


def _goal(row: Row) -> str:
    return "" if row.goal is None else ("≤ " if row.at_most else "≥ ") + f"{row.goal:g}"


def _mark(row: Row) -> str:
    return {None: "", True: "reached. ", False: "NOT reached. "}[row.reached]


def line(row: Row) -> str:
    """One row for the terminal."""
    goal = f"  (goal {_goal(row)}: {'reached' if row.reached else 'NOT reached'})" if row.goal is not None else ""
    return f"{row.name}: {number_text(row)}{goal}" + (f"  {row.detail}" if row.detail else "")


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean, None of nothing."""
    return sum(values) / len(values) if values else None
