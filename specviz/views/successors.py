"""The successor rows a draft was unfolded from: what the target last ranked behind a token, and what was drafted."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.trace.schema import SKIPPED, Trace
from specviz.views.canvas import Canvas
from specviz.views.canvas_figure import drawn
from specviz.views.notes import MOST_ROWS, drafted_as, node_of, story
from specviz.views.theme import count, theme_of

_LETTERS = 12
_ROW = 30.0
_GAP = 8.0


def successors(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """A row a token: its remembered successors by rank, drafted ones as pills with their verdict, others as words."""
    step, note = story(trace, index, "successors")
    canvas = Canvas(theme_of(theme))
    rows = note.rows("rows")
    nodes = [node_of(step, row) for row in rows]
    texts = [row.texts() for row in rows]
    lefts = _lefts(canvas, [step.nodes[node].text for node in nodes], texts)
    for rank, left in enumerate(lefts[:-1]):
        canvas.write(left, 8, f"rank {rank + 1}")
    for place, (row, node) in enumerate(zip(rows, nodes, strict=True)):
        high = 36 + place * _ROW
        end = canvas.pill(0, high, step.nodes[node].text, step.nodes[node].status, most=_LETTERS)
        canvas.arrow((end + 5, high), (lefts[0] - 7, high))
        used = row.whole("used")
        for rank, (left, text, token) in enumerate(zip(lefts, texts[place], row.tokens(), strict=False)):
            if rank < used:
                canvas.pill(left, high, text, drafted_as(step, node, token) or SKIPPED, most=_LETTERS)
            else:
                canvas.word(left, high, text, most=_LETTERS)
    shown = f"{'the first ' if len(rows) == MOST_ROWS else ''}{count(len(rows), 'remembered row')}"
    subtitle = "a row holds what the target last ranked behind that token, in any pass and on any branch"
    rewritten = note.whole("updated", 0)
    if rewritten:
        subtitle += f"; the pass before this one rewrote {count(rewritten, 'row')}"
    return drawn(
        canvas, f"Step {step.index + 1} · the draft, unfolded from {shown}", subtitle, lefts[-1], 30 + len(rows) * _ROW
    )


def _lefts(canvas: Canvas, heads: list[str], texts: list[list[str]]) -> list[float]:
    """Left edge of every rank's column, and where the last one ends."""
    found = [max((canvas.width_of(head, _LETTERS) for head in heads), default=60.0) + 40]
    for rank in range(max(map(len, texts), default=0)):
        widest = max(canvas.width_of(row[rank], _LETTERS) for row in texts if rank < len(row))
        found.append(found[-1] + widest + _GAP)
    return found
