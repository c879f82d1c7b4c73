"""Relaxed acceptance: the codebook with a drafted code's look-alikes, and every judged code's p, what it took over, and q."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from specviz.trace.schema import ACCEPTED, RELAXED, Step, Trace
from specviz.views.code_map import Codes, codes_of, look_alikes_of
from specviz.views.notes import Story, node_of, story
from specviz.views.theme import Theme, axis, count, figure, theme_of

_WIDTH, _HEIGHT = 960, 420
_MOST = 14
_DOTS = 320


def relaxed(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Left: codes by their first two principal components, the last judged code tied to those it stands for. Right: bars."""
    step, note = story(trace, index, "relaxed")
    look, rows = theme_of(theme), note.rows("nodes", _MOST)
    made = figure(look, *_headline(step, note, rows), width=_WIDTH, height=_HEIGHT, key=True, barmode="stack")
    if rows:
        _map(made, look, step, rows[-1], codes_of(trace.run))
        _bars(made, look, step, rows)
    made.update_layout(
        xaxis={"visible": False, "domain": [0, 0.5], "range": [-0.03, 1.03]},
        yaxis={"visible": False, "range": [-0.03, 1.03]},
        xaxis2=axis(look, "probability", domain=[0.6, 1], anchor="y2", rangemode="tozero"),
        yaxis2=axis(look, "", grid=False, anchor="x2", autorange="reversed"),
    )
    return made


def _headline(step: Step, note: Story, rows: list[Story]) -> tuple[str, str]:
    kept = sum(step.nodes[node_of(step, row)].status in (ACCEPTED, RELAXED) for row in rows)
    loose = sum(step.nodes[node_of(step, row)].status == RELAXED for row in rows)
    delta = note.maybe_number("delta")
    limit = f"δ = {delta:g}" if delta is not None else f"λ = {note.number('factor'):g}"
    title = f"Step {step.index + 1} · {count(len(rows), 'code')} judged, {kept} kept, {loose} of them by look-alikes"
    return title, f"{limit}, k = {note.whole('k')}: a code is judged with the mass of the look-alikes it may stand for"


def _map(made: go.Figure, look: Theme, step: Step, row: Story, book: Codes) -> None:
    """Every code faintly, the look-alikes that were considered in rings, and those the code may stand for tied to it."""
    if not book.places:
        return
    every = max(1, len(book.places) // _DOTS)
    considered, taken = look_alikes_of(row), row.whole("count")
    near = [code for code in considered[:taken] if code < len(book.places)]
    others = [code for code in considered[taken:] if code < len(book.places)]
    own = step.nodes[node_of(step, row)].token
    _dots(made, book, range(0, len(book.places), every), 6, opacity=0.35)
    if others:
        _dots(made, book, others, 8, name="look-alikes beyond the limit", opacity=0.7, edge=look.quiet)
    if own >= len(book.places):
        return
    x, y = book.places[own]
    spokes = [(x, y, *book.places[code]) for code in near]
    made.add_scatter(
        x=[value for left, _, right, _ in spokes for value in (left, right, None)],
        y=[value for _, low, _, high in spokes for value in (low, high, None)],
        mode="lines", line={"color": look.relaxed, "width": 1}, hoverinfo="skip", showlegend=False,
    )  # fmt: skip
    if near:
        told = [f"#{code}" for code in near]
        _dots(made, book, near, 10, name=_region(row, near), edge=look.relaxed, told=told)
    _dots(made, book, [own], 13, edge=look.ink, told=[f"#{own}, drafted"])


def _region(row: Story, near: list[int]) -> str:
    """What the key calls the codes that are tied; a trace that knows only some of them says so."""
    taken = row.whole("count")
    if len(near) == taken:
        return f"the {count(taken, 'look-alike')} it stands for"
    return f"{len(near)} of the {count(taken, 'look-alike')} it stands for"


def _dots(
    made: go.Figure, book: Codes, codes: Sequence[int], size: float, *, name: str = "", opacity: float = 1.0,
    edge: str = "", told: Sequence[str] = (),
) -> None:  # fmt: skip
    outline = {"line": {"width": 1.5, "color": edge}} if edge else {}
    made.add_scatter(
        x=[book.places[code][0] for code in codes], y=[book.places[code][1] for code in codes], mode="markers", name=name,
        marker={"symbol": "square", "size": size, "color": [book.colour(code) for code in codes], "opacity": opacity, **outline},
        hovertext=list(told) or None, hoverinfo="text" if told else "skip", showlegend=bool(name),
    )  # fmt: skip


def _bars(made: go.Figure, look: Theme, step: Step, rows: list[Story]) -> None:
    names = [f"{place + 1}: #{step.nodes[node_of(step, row)].token}" for place, row in enumerate(rows)]
    for part, colour, values in (
        ("p of the code", look.accepted, [row.share("p") for row in rows]),
        ("taken over from look-alikes", look.relaxed, [row.share("moved") for row in rows]),
    ):
        made.add_bar(
            y=names, x=[round(value, 6) for value in values], name=part, orientation="h", xaxis="x2", yaxis="y2",
            marker={"color": colour},
        )  # fmt: skip
    q = [row.share("q") for row in rows]
    made.add_scatter(
        x=[round(value, 6) for value in q if value < 1], y=[name for name, value in zip(names, q, strict=True) if value < 1],
        mode="markers", name="q, the drafter's", xaxis="x2", yaxis="y2",
        marker={"symbol": "line-ns", "size": 16, "line": {"width": 2.5, "color": look.ink}},
    )  # fmt: skip
