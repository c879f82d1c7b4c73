"""Independent heads as a fan: one hidden state, a list of guesses for each depth, and which of them were used and kept."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.trace.schema import ACCEPTED, PRUNED, REJECTED, RELAXED, RESAMPLED, SKIPPED, Step, Trace
from specviz.views.canvas import PILL, Canvas, Line
from specviz.views.canvas_figure import drawn
from specviz.views.notes import Story, story
from specviz.views.theme import TEXT, count, number, theme_of

_LETTERS = 14
_ROW = 40.0
_TOP = 96.0
_BAR = 90.0
_WIDTH = 760.0
_GAP = 26.0
_MOST = 10
_BEST = (ACCEPTED, RELAXED, REJECTED, RESAMPLED, SKIPPED)


def heads(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """A column a head, likeliest first: pills stand in the tree with the best verdict they got, words were not used."""
    step, note = story(trace, index, "heads")
    canvas = Canvas(theme_of(theme))
    rows = note.rows("heads", 8)
    widths = [max(_width(canvas, row), (_WIDTH - _GAP * (len(rows) - 1)) / len(rows)) for row in rows]
    lefts = [sum(widths[:place]) + _GAP * place for place in range(len(rows) + 1)]
    middle = max(_WIDTH, lefts[-1] - _GAP) / 2
    root = step.nodes[0]
    half = canvas.width_of(root.text, _LETTERS) / 2
    canvas.pill(middle - half, 14, root.text, root.status, "the hidden state of this token feeds every head", _LETTERS)
    most = 0
    for left, wide, row in zip(lefts, widths, rows, strict=False):
        most = max(most, _column(canvas, step, row, left))
        canvas.arrow((middle, 26), (left + min(wide, _BAR) / 2, _TOP - 38))
    return drawn(canvas, *_headline(step, rows), lefts[-1], _TOP + max(most, 1) * _ROW - 6)


def _headline(step: Step, rows: list[Story]) -> tuple[str, str]:
    name = f"Step {step.index + 1}"
    if not rows:
        return f"{name} · the heads proposed nothing", "there is no hidden state before the first target pass"
    said = (
        "every head guesses for its own depth from the same hidden state, blind to what the others choose; "
        "bars: its probability"
    )
    return f"{name} · {count(len(rows), 'head')}, {len(step.path)} accepted", said


def _width(canvas: Canvas, row: Story) -> float:
    return max([_BAR + 34, *(canvas.width_of(text, _LETTERS) for text in row.texts()[:_MOST])])


def _column(canvas: Canvas, step: Step, row: Story, left: float) -> int:
    """One head's list. Gives back how many entries it has."""
    depth, texts, tokens = row.whole("head"), row.texts(), row.tokens()
    chances = row.numbers("probability", len(tokens))
    canvas.write(left, _TOP - 26, f"head {depth}", size=TEXT + 0.5, color=canvas.theme.ink, weight=650)
    for rank, (text, token, chance) in enumerate(list(zip(texts, tokens, chances, strict=True))[:_MOST]):
        high = _TOP + rank * _ROW
        status = _verdict(step, depth, token)
        if status is None:
            canvas.word(left + 2, high, text, most=_LETTERS)
        else:
            canvas.pill(left, high, text, status, most=_LETTERS)
        below = high + PILL / 2 + 5
        canvas.bar(
            left + 1,
            below,
            _BAR * min(1.0, max(0.0, chance)),
            Line("the head's probability", canvas.theme.draft, "solid"),
        )
        canvas.write(left + _BAR + 4, below, number(chance))
    return min(len(tokens), _MOST)


def _verdict(step: Step, depth: int, token: int) -> str | None:
    """The best verdict that this token got at this depth, on whichever branch; None where the tree has no use for it."""
    found = {
        node.status
        for node, at in zip(step.nodes, step.depths, strict=True)
        if at == depth and node.token == token and node.status != PRUNED
    }
    return next((status for status in _BEST if status in found), None)
