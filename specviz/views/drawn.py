"""The picture of an image run up to a step, every cell in its code's colour with the verdict that put it there."""

from __future__ import annotations

from collections import Counter

import plotly.graph_objects as go

from specviz.errors import BadInput
from specviz.trace.schema import ACCEPTED, RELAXED, RESAMPLED, Trace
from specviz.views.code_map import board, codes_of, squares
from specviz.views.notes import story
from specviz.views.theme import Theme, figure, theme_of

BONUS = "bonus"
NAMES = {ACCEPTED: "strict", RELAXED: "relaxed", RESAMPLED: "drawn again", BONUS: "bonus"}


def drawn(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Cells of the steps up to and with ``index``. Raises BadInput where the run drew no picture."""
    if trace.run.grid is None:
        raise story(trace, index, "canvas")[1].wrong("the run's grid", "known")
    if not 0 <= index < len(trace.steps):
        raise BadInput(f"There is no step {index}; the run has {len(trace.steps)}, counted from 0.")
    look, book = theme_of(theme), codes_of(trace.run)
    rows, columns = trace.run.grid
    found = _cells(trace, index)
    counts = Counter(kind for _, _, kind in found)
    said = ", ".join(f"{counts[kind]} {name}" for kind, name in NAMES.items() if counts[kind])
    title = f"Step {index + 1} · code {len(found)} of {rows * columns}"
    size = min(30.0, 440 / max(rows, columns))
    made = figure(look, title, said, width=int(130 + columns * size), height=int(170 + rows * size), key=True)
    for kind, name in NAMES.items():
        here = [(cell, token) for cell, token, one in found if one == kind]
        if here:
            cells, colours = [cell for cell, _ in here], [book.colour(token) for _, token in here]
            squares(made, look, cells, colours, size * 0.92, name=name, line=_frame(look, kind))
    board(made, (0, rows), columns)
    return made


def _cells(trace: Trace, index: int) -> list[tuple[tuple[int, int], int, str]]:
    """Cell, code and how it came to be, in the order they were drawn."""
    found = []
    for step in trace.steps[: index + 1]:
        kept = [(step.nodes[node].grid, step.nodes[node].status) for node in step.path]
        if step.bonus is not None:
            kept.append((step.bonus.grid, RESAMPLED if step.overruled else BONUS))
        for (grid, kind), token in zip(kept, step.emitted, strict=False):
            if grid is not None:
                found.append((grid, token, kind))
    return found


def _frame(look: Theme, kind: str) -> str:
    colours = {ACCEPTED: look.accepted, RELAXED: look.relaxed, RESAMPLED: look.resampled}
    return colours.get(kind, look.bonus)
