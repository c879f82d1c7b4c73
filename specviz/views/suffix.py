"""A draft looked up in counting suffix trees: the suffix that matched, what followed it how often, the score it reached."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from specviz.errors import BadTrace
from specviz.trace.schema import Step, Trace
from specviz.views.canvas import PILL, Canvas, Line, text_width
from specviz.views.canvas_figure import drawn
from specviz.views.notes import Story, drafted_as, node_of, story
from specviz.views.theme import count, number, theme_of, visible

SOURCES = ("context", "outputs", "none")
_AROUND = 5
_WIDTH = 980.0
_LINE = 30.0
_ROW = 50.0
_LETTERS = 14
_BAR = 70.0
_SCALE = 420.0
_FORKS = 8


def suffix(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """The matched end of the text, a row for each fork of the tree below it with counts, and scores by memory."""
    step, note = story(trace, index, "suffix")
    canvas = Canvas(theme_of(theme))
    pieces = [*trace.run.prompt_pieces, *(piece for one in trace.steps[:index] for piece in one.pieces)]
    start, matched = note.whole("suffix_start"), note.whole("suffix_length")
    if matched and start + matched > len(pieces):
        raise BadTrace(f"{note.where}: the suffix reaches beyond the text; the trace is damaged.")
    high = _text(canvas, pieces, start, matched) if matched else 0.0
    for row in note.rows("rows", _FORKS):
        high = _fork(canvas, step, row, high)
    high = _scores(canvas, note, high)
    return drawn(canvas, *_headline(step, note), _WIDTH, high)


def _headline(step: Step, note: Story) -> tuple[str, str]:
    name, source = f"Step {step.index + 1}", note.word("source", SOURCES)
    remembered = count(note.whole("remembered"), "token")
    if source == "none":
        said = f"nothing is known to have followed the end of this text; earlier outputs remembered: {remembered}"
        return f"{name} · no match, so nothing was drafted", said
    matched, limit = count(note.whole("suffix_length"), "token"), count(note.whole("limit"), "token")
    place = "this text" if source == "context" else f"earlier outputs ({remembered})"
    said = (
        f"the last {matched} occur {count(note.whole('occurrences'), 'time')} in {place}; that allows {limit} of draft"
    )
    if note.data.get("used") is not True:
        return f"{name} · the score is below the threshold, so nothing was drafted", said
    drafted = count(len(step.nodes) - 1, "token")
    return f"{name} · {matched} matched, {drafted} drafted, {len(step.path)} accepted", said


def _text(canvas: Canvas, pieces: Sequence[str], start: int, matched: int) -> float:
    """The end of the text, the matched part marked. Gives back where the next part starts."""
    canvas.write(0, 10, f"the text ends so, from token {max(0, start - _AROUND)}", size=12)
    look, left, high = canvas.theme, 0.0, 34.0
    for place in range(max(0, start - _AROUND), start + matched):
        wide = max(text_width(visible(pieces[place], _LETTERS)), 7) + 7
        if left and left + wide > _WIDTH:
            left, high = 0.0, high + _LINE
        if place >= start:
            canvas.band(left, high - 10, wide, 20, look.tints["relaxed"])
            canvas.bar(left + 1, high + 11, wide - 2, Line("matched", look.relaxed, "3px,2px"))
        canvas.word(left + 3.5, high, pieces[place], look.ink if place >= start else "", _LETTERS)
        left += wide + 1
    return high + _LINE + 12


def _fork(canvas: Canvas, step: Step, row: Story, high: float) -> float:
    """What followed one place, most frequent first: drafted tokens as pills, the others as words, counts as bars."""
    node, texts, tokens = node_of(step, row), row.texts(), row.tokens()
    counts = row.wholes("counts")
    if len(counts) != len(tokens):
        raise row.wrong("counts", f"a list of {len(tokens)} whole numbers")
    head, whole = step.nodes[node], max(1, row.whole("count"))
    left = canvas.pill(0, high + 12, head.text, head.status, most=_LETTERS) + 8
    canvas.write(left, high + 12, f"{whole}×", size=12)
    left = max(left + 46, 150.0)
    for text, token, seen in zip(texts, tokens, counts, strict=True):
        status = drafted_as(step, node, token)
        hover = f"followed {seen} of {whole} times"
        wide = max(canvas.width_of(text, _LETTERS), _BAR)
        if left + wide > _WIDTH:
            break
        if status is None:
            canvas.word(left, high + 12, text, most=_LETTERS)
        else:
            canvas.pill(left, high + 12, text, status, hover, most=_LETTERS)
        below = high + 12 + PILL / 2 + 5
        canvas.bar(left, below, _BAR * min(1.0, seen / whole), Line("count", canvas.theme.draft, "solid"))
        canvas.write(left - 2, below + 9, f"{seen}×")
        left += wide + 14
    if row.whole("others", 0):
        canvas.write(min(left, _WIDTH - 60), high + 12, f"+{row.whole('others')} more", size=12)
    return high + _ROW


def _scores(canvas: Canvas, note: Story, high: float) -> float:
    """Tokens expected to be right, by memory, against the threshold."""
    scores = note.part("scores")
    if scores is None:
        raise note.wrong("scores", "an object")
    found = {source: scores.number(source) for source in SOURCES[:2] if source in scores.data}
    threshold = note.number("threshold")
    most = max([1.0, threshold, *found.values()])
    canvas.write(0, high + 12, "score: tokens expected to be right", size=12)
    for place, (source, score) in enumerate(found.items()):
        at = high + 36 + 24 * place
        used = source == note.data.get("source")
        colour = canvas.theme.ink if used else ""
        canvas.write(0, at, "this text" if source == "context" else "earlier outputs", size=12, color=colour)
        wide = _SCALE * min(1.0, max(0.0, score) / most)
        canvas.bar(110, at, wide, _line(canvas, used))
        canvas.write(116 + wide, at, number(score), color=colour)
    bottom = high + 36 + 24 * len(found)
    if threshold > 0:
        place = 110 + _SCALE * threshold / most
        canvas.band(place, high + 26, 1.6, bottom - high - 30, canvas.theme.rejected)
        canvas.write(place + 5, bottom, f"threshold {number(threshold)}")
        bottom += 16
    return bottom


def _line(canvas: Canvas, used: bool) -> Line:
    return Line("score", canvas.theme.accepted, "solid") if used else Line("lower score", canvas.theme.quiet, "solid")
