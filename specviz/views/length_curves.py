"""Tokens a pass by length of the text, method by method, as the length suite measured them, beside where a run stands."""

from __future__ import annotations

from math import log10

import plotly.graph_objects as go

from specviz.trace.lengths import LengthCurves
from specviz.views.theme import Theme, axis, number, safe

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MARKS = ("circle", "square", "diamond", "triangle-up", "cross")
_LINE = 20
_WORDS = {"answers": "answers behind a text of that length", "copies": "copies from a text of that length"}


def beside(made: go.Figure, look: Theme, curves: LengthCurves, kind: str, here: tuple[int, float]) -> None:
    """Move what ``made`` shows to the left and draw the curves of ``kind`` at its right, ``here`` (tokens of text, tokens a
    pass) among them: the length grows by equal factors."""
    colours = (look.accepted, look.relaxed, look.bonus, look.resampled, look.draft)
    for place, curve in enumerate(curves.of(kind)):
        style = place % len(colours)
        made.add_scatter(
            x=list(curves.lengths), y=list(curve.tau), xaxis="x2", yaxis="y2", mode="lines+markers", name=safe(curve.method),
            line={"color": colours[style], "width": 2, "dash": _DASHES[style]},
            marker={"symbol": _MARKS[style], "size": 7}, hoverinfo="text",
            hovertext=[f"{safe(curve.method)}: τ {number(tau)} behind {length} tokens"
                       for length, tau in zip(curves.lengths, curve.tau, strict=True)],
        )  # fmt: skip
    length, tau = max(1, here[0]), here[1]
    made.add_scatter(
        x=[length], y=[tau], xaxis="x2", yaxis="y2", mode="markers", name="this run here", hoverinfo="text",
        hovertext=[f"this run around a text of {length} tokens: {number(tau)} a pass"],
        marker={"symbol": "circle-open", "size": 15, "color": look.ink, "line": {"width": 2.5}},
    )  # fmt: skip
    ends = [log10(min(length, curves.lengths[0])) - 0.1, log10(max(length, curves.lengths[-1])) + 0.1]
    ticks = {"tickvals": list(curves.lengths), "ticktext": [str(one) for one in curves.lengths], "range": ends}
    # The names of the curves take a second line above the drawing.
    made.update_layout(height=made.layout.height + _LINE, margin_t=made.layout.margin.t + _LINE)
    made.update_layout(
        xaxis_domain=[0, 0.5],
        xaxis2=axis(look, f"{_WORDS[kind]}, tokens", type="log", domain=[0.6, 1], anchor="y2", grid=False, **ticks),
        yaxis2=axis(look, f"τ, measured {safe(curves.date)}", anchor="x2", rangemode="tozero"),
    )
