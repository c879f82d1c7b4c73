"""A lattice of guesses that do not know each other, the beams that were led through it, and how long the draft could be."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.trace.schema import Step, Trace
from specviz.views.canvas import PILL, Canvas, Line
from specviz.views.canvas_figure import drawn
from specviz.views.notes import Story, story
from specviz.views.theme import TEXT, Theme, count, number, theme_of

_WIDE = 132.0
_LETTERS = 12
_TOP = 34.0
_ROW = 38.0
_BAR = 84.0
_MOST = 32


class _Beams(NamedTuple):
    """After a column: for each beam the one it goes on from, and the row of the candidate it took."""

    parents: list[int]
    picks: list[int]


def lattice(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """A column a place, likeliest first; the beams as lines, the drafted path as pills, the fence, and the gauge below."""
    step, note = story(trace, index, "lattice")
    canvas = Canvas(theme_of(theme))
    rows = note.rows("columns", _MOST)
    beams = [_read(one, rows[at]) for at, one in enumerate(note.rows("beams", len(rows)))]
    path = _best(beams)
    low = _TOP
    for at, row in enumerate(rows):
        low = max(low, _column(canvas, step, row, at, path[at] if at < len(path) else None))
    fence = note.maybe_whole("fence")
    if fence is not None and fence <= len(rows):
        x = fence * _WIDE - 14
        canvas.band(x - 2, 0, 4, low + 4, canvas.theme.ink)
        canvas.write(x + 8, low - 8, "end of the text", color=canvas.theme.ink)
    high = _gauge(canvas, note, low + 30)
    made = drawn(
        canvas, *_headline(step, rows, beams, note), max(1, len(rows)) * _WIDE + (0 if fence is None else 90), high
    )
    _lines(made, canvas.theme, beams, path)
    return made


def _headline(step: Step, rows: list[Story], beams: list[_Beams], note: Story) -> tuple[str, str]:
    name = f"Step {step.index + 1}"
    if not rows:
        return f"{name} · nothing was drafted", "there was no room for a block"
    widest = max(len(one.picks) for one in beams) if beams else 0
    share = number(note.share("weight"))
    said = f"{count(widest, 'beam')} led from left to right; score: {share} of the drafter's law, the rest n-grams"
    drafted = len(step.nodes) - 1
    return f"{name} · {count(drafted, 'token')} through {count(len(rows), 'column')}, {len(step.path)} accepted", said


def _read(row: Story, column: Story) -> _Beams:
    """A step of the search whose picks lie in its column."""
    return _Beams(row.wholes("parents"), row.wholes("picks", len(column.tokens())))


def _best(beams: list[_Beams]) -> list[int]:
    """Rows of the best beam's candidates, first column first: the last step's first beam, followed back."""
    found: list[int] = []
    at = 0
    for one in reversed(beams):
        if at >= len(one.picks):
            return []
        found.append(one.picks[at])
        at = one.parents[at] if at < len(one.parents) else 0
    return found[::-1]


def _spot(at: int, row: int) -> tuple[float, float]:
    return at * _WIDE, _TOP + row * _ROW


def _column(canvas: Canvas, step: Step, row: Story, at: int, taken: int | None) -> float:
    """One place's candidates; the drafted one is a pill. Gives back the lower end."""
    tokens, texts = row.tokens(), row.texts()
    shares = row.numbers("probability", len(tokens))
    canvas.write(at * _WIDE, 6, f"place {at + 1}", anchor="middle right", color=canvas.theme.ink, weight=650)
    for rank, (text, share) in enumerate(zip(texts, shares, strict=True)):
        x, y = _spot(at, rank)
        if rank == taken and at + 1 < len(step.nodes):
            canvas.pill(x, y, text, step.nodes[at + 1].status, f"q {number(share)}", _LETTERS)
        else:
            canvas.word(x + 2, y, text, most=_LETTERS)
        canvas.bar(
            x + 1,
            y + PILL / 2 + 4,
            _BAR * min(1.0, max(0.0, share)),
            Line("q of the place", canvas.theme.draft, "solid"),
        )
    more = row.whole("size", len(tokens)) - len(tokens)
    low = _TOP + len(tokens) * _ROW
    if more > 0:
        canvas.write(at * _WIDE, low - 8, f"+{more} more", anchor="middle right")
    return low


def _lines(made: go.Figure, look: Theme, beams: list[_Beams], path: list[int]) -> None:
    """Every beam's step from one column to the next, and on top of them the path that was drafted."""
    survived: list[tuple[int, int, int]] = []
    for at in range(1, len(beams)):
        for parent, pick in zip(beams[at].parents, beams[at].picks, strict=False):
            if parent < len(beams[at - 1].picks):
                survived.append((at, beams[at - 1].picks[parent], pick))
    best = [(at, path[at - 1], path[at]) for at in range(1, len(path))]
    thin, thick = {"color": look.quiet, "width": 1.4, "dash": "dot"}, {"color": look.ink, "width": 2.4}
    for name, edges, line in (("beams", survived, thin), ("drafted path", best, thick)):
        if edges:
            x, y = zip(*[point for edge in edges for point in _edge(*edge)], strict=True)
            made.add_scatter(x=x, y=y, mode="lines", line=line, name=name, hoverinfo="skip")


def _edge(at: int, before: int, after: int) -> list[tuple[float | None, float | None]]:
    (x0, y0), (x1, y1) = _spot(at - 1, before), _spot(at, after)
    return [(x0 + _BAR + 18, y0), (x1 - 3, y1), (None, None)]


def _gauge(canvas: Canvas, note: Story, top: float) -> float:
    """How long this draft could be, between the shortest and the longest, and the two means that say so."""
    gauge = note.part("gauge")
    if gauge is None:
        return top
    longest = max(1, gauge.whole("longest"))
    unit = 420.0 / longest
    how = "adapts" if gauge.data.get("adaptive") else "fixed"
    canvas.write(
        0, top, f"length of the draft ({how})", anchor="middle right", size=TEXT, color=canvas.theme.ink, weight=650
    )
    told = (
        ("masks now", float(gauge.whole("length")), Line("masks", canvas.theme.draft, "solid")),
        ("drafted, mean", gauge.number("drafted"), Line("running means", canvas.theme.plain, "solid")),
        ("accepted, mean", gauge.number("accepted"), Line("running means", canvas.theme.plain, "solid")),
    )
    for number_, (name, value, line) in enumerate(told, start=1):
        high = top + number_ * 22
        canvas.write(0, high, name, anchor="middle right")
        canvas.bar(110, high, unit * max(0.0, value), line)
        canvas.write(116 + unit * max(0.0, value), high, number(value), anchor="middle right")
    bounds = f"between {gauge.whole('shortest')} and {longest}"
    canvas.write(0, top + 92, bounds, anchor="middle right")
    return top + 104
