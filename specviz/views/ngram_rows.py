"""Rows of an n-gram table and the noise that reorders them: what was likely, what noise put first, what was picked."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from specviz.trace.schema import SKIPPED, Step, Trace
from specviz.views.canvas import PILL, Canvas, Line
from specviz.views.canvas_figure import drawn
from specviz.views.notes import Story, drafted_as, node_of, story
from specviz.views.theme import count, number, theme_of

_LETTERS = 12
_ROW = 52.0
_GAP = 12.0
_BAR = 60.0
_PRINT = 84.0


@dataclass(frozen=True)
class _Cell:
    """One token of a table row. ``rank`` counts by stored probability; ``status`` is None when it was not picked."""

    text: str
    probability: float
    noisy: float | None
    rank: int
    status: str | None

    @property
    def hover(self) -> str:
        said = f"stored probability {number(self.probability, 3)}, rank {self.rank + 1}"
        return said if self.noisy is None else f"{said}<br>log-probability with noise {self.noisy:.2f}"


@dataclass(frozen=True)
class _Row:
    """A table row as it is drawn, its tokens in the order in which they were taken."""

    node: int
    order: int
    picked: int
    cells: list[_Cell]


def ngram_rows(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """A table row a node, in the order the noise gave it; picked tokens are pills, bars the stored probabilities."""
    step, note = story(trace, index, "ngram_rows")
    canvas = Canvas(theme_of(theme))
    rows = [_row(step, row) for row in note.rows("rows")]
    lefts = _lefts(canvas, [step.nodes[row.node].text for row in rows], [row.cells for row in rows])
    noise = any(cell.noisy is not None for row in rows for cell in row.cells)
    if rows:
        canvas.write(lefts[0], 8, "highest with noise first →" if noise else "likeliest first →")
    for place, row in enumerate(rows):
        high, head = 38 + place * _ROW, step.nodes[row.node]
        end = canvas.pill(0, high, head.text, head.status, most=_LETTERS)
        canvas.write(end + 6, high, f"{row.order}-gram")
        for left, cell in zip(lefts, row.cells, strict=False):
            _cell(canvas, left, high, cell)
    return drawn(canvas, *_headline(step, rows, note.whole("entries", 0), noise), lefts[-1], 30 + len(rows) * _ROW)


def _headline(step: Step, rows: list[_Row], entries: int, noise: bool) -> tuple[str, str]:
    name, table = f"Step {step.index + 1}", f"the table holds {count(entries, 'row')}"
    if not rows:
        return f"{name} · no row of the table was used", f"{table}, none that fits the end of this text"
    picked = count(sum(row.picked for row in rows), "token")
    order = "log-probability plus Gumbel noise" if noise else "stored probability"
    subtitle = f"bars: stored probability; order: {order}; {table}"
    return f"{name} · {picked} picked from {count(len(rows), 'table row')}", subtitle


def _row(step: Step, row: Story) -> _Row:
    """Without noise (at temperature 0) the list of perturbed values is empty and the likeliest tokens are taken."""
    node, texts, tokens = node_of(step, row), row.texts(), row.tokens()
    probability = row.numbers("probability", len(tokens))
    noisy = row.numbers("perturbed", len(tokens)) if row.data.get("perturbed") else None
    likeliest = sorted(range(len(tokens)), key=lambda one: -probability[one])
    taken = sorted(range(len(tokens)), key=lambda one: -(noisy or probability)[one])
    picked = min(row.whole("picked"), len(tokens))
    cells = []
    for place, one in enumerate(taken):
        status = (drafted_as(step, node, tokens[one]) or SKIPPED) if place < picked else None
        cells.append(_Cell(texts[one], probability[one], noisy and noisy[one], likeliest.index(one), status))
    return _Row(node, row.whole("order"), picked, cells)


def _lefts(canvas: Canvas, heads: list[str], rows: list[list[_Cell]]) -> list[float]:
    """Left edge of every column, and where the last one ends."""
    found = [max((canvas.width_of(head, _LETTERS) for head in heads), default=60.0) + 84]
    for place in range(max(map(len, rows), default=0)):
        widest = max(canvas.width_of(row[place].text, _LETTERS) for row in rows if place < len(row))
        found.append(found[-1] + max(widest, _PRINT) + _GAP)
    return found


def _cell(canvas: Canvas, left: float, high: float, cell: _Cell) -> None:
    if cell.status is not None:
        canvas.pill(left, high, cell.text, cell.status, cell.hover, most=_LETTERS)
    else:
        canvas.word(left, high, cell.text, most=_LETTERS)
    below = high + PILL / 2 + 5
    canvas.bar(
        left,
        below,
        _BAR * min(1.0, max(0.0, cell.probability)),
        Line("stored probability", canvas.theme.draft, "solid"),
    )
    canvas.write(left - 2, below + 9, f"{number(cell.probability)}, rank {cell.rank + 1}")
