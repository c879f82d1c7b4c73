"""A block of masks that one forward resolves: what every place was given, how sure it was, and how far blocks get."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.trace import metrics
from specviz.trace.schema import Step, Trace
from specviz.views.canvas import PILL, Canvas, Line
from specviz.views.canvas_figure import drawn
from specviz.views.notes import Story, story
from specviz.views.theme import TEXT, count, number, theme_of

_ACROSS = 8
_WIDE = 124.0
_LETTERS = 13
_BAR = 70.0
_MASKS, _TOKENS, _WORDS = 14.0, 64.0, 100.0
_PITCH = 20.0
_SHOWN = 3
_MOST = 64


def denoised(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Above the masks, below what they became with each place's likeliest tokens; at the bottom all accepted lengths."""
    step, note = story(trace, index, "denoised")
    canvas = Canvas(theme_of(theme))
    rows = note.rows("places", _MOST)
    low = 0.0
    for place, row in enumerate(rows):
        line, column = divmod(place, _ACROSS)
        top = line * (_WORDS + _SHOWN * _PITCH + 24)
        _place(canvas, step, row, place + 1, column * _WIDE, top)
        low = top + _WORDS + _SHOWN * _PITCH + 24
    wide = _WIDE * max(1, min(_ACROSS, len(rows)))
    return drawn(canvas, *_headline(step, rows), wide, _lengths(canvas, trace, step, low))


def _headline(step: Step, rows: list[Story]) -> tuple[str, str]:
    name = f"Step {step.index + 1}"
    if not rows:
        return f"{name} · nothing was drafted", "there was no room for a block"
    said = (
        "one forward turns all masks into tokens at once; a place knows the text before the block, not what its "
        "neighbours become"
    )
    return f"{name} · {count(len(rows), 'mask')} resolved in one forward, {len(step.path)} accepted", said


def _place(canvas: Canvas, step: Step, row: Story, node: int, left: float, top: float) -> None:
    """One mask, the token it became, and the place's likeliest tokens with their probability."""
    tokens, texts = row.tokens(), row.texts()
    shares = row.numbers("probability", len(tokens))
    canvas.band(left, top + _MASKS - PILL / 2, _BAR, PILL, canvas.theme.line)
    canvas.write(left + _BAR / 2, top + _MASKS, f"mask {node}", anchor="middle center")
    canvas.arrow((left + 10, top + _MASKS + PILL / 2), (left + 10, top + _TOKENS - PILL / 2 - 2))
    if node < len(step.nodes):
        drafted = step.nodes[node]
        sure = "" if drafted.q is None else f"probability {number(drafted.q)}"
        canvas.pill(left, top + _TOKENS, drafted.text, drafted.status, sure, _LETTERS)
    for rank, (text, share) in enumerate(list(zip(texts, shares, strict=True))[:_SHOWN]):
        high = top + _WORDS + rank * _PITCH
        canvas.word(left + 2, high - 6, text, most=_LETTERS)
        canvas.bar(
            left + 2, high + 4, _BAR * min(1.0, max(0.0, share)), Line("q of the place", canvas.theme.draft, "solid")
        )
        canvas.write(left + _BAR + 6, high + 4, number(share), anchor="middle right")


def _lengths(canvas: Canvas, trace: Trace, step: Step, top: float) -> float:
    """How many steps of the run accepted how many tokens; this step's length stands out. Gives back the lower end."""
    counts = metrics.histogram(trace.steps)
    canvas.write(0, top + 8, "accepted in a step, over the run", size=TEXT, color=canvas.theme.ink, weight=650)
    most = max(counts, default=0) or 1
    for length, steps in enumerate(counts):
        high = top + 32 + length * _PITCH
        own = length == step.accepted
        canvas.write(18, high, str(length), anchor="middle left", color=canvas.theme.ink, weight=650 if own else 400)
        line = (
            Line("this step's length", canvas.theme.accepted, "solid")
            if own
            else Line("steps", canvas.theme.plain, "solid")
        )
        if steps:
            canvas.bar(30, high, 360.0 * steps / most, line)
        canvas.write(36 + 360.0 * steps / most, high, str(steps), anchor="middle right")
    return top + 32 + len(counts) * _PITCH
