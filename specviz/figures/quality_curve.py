"""Quality against speed, one point for each setting of each image method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures.theme import axis, figure, number, safe, theme_of

_LOOKS = (
    ("circle", "#0072B2"), ("square", "#D55E00"), ("diamond", "#009E73"), ("cross", "#CC79A7"), ("x", "#E69F00"),
    ("triangle-up", "#56B4E9"), ("star", "#7d858e"),
)  # fmt: skip
"""A shape and a colour a method."""
_WIDTH, _HEIGHT = 960, 700


class Point(NamedTuple):
    """One setting: its method, how it is called, the baseline's time over its time, mean ``score`` of its pictures for
    their prompts (None where nothing scores them), and mean ``distance`` of codes to the target's own choice in their place."""

    method: str
    label: str
    faster: float
    score: float | None
    distance: float


def quality_curve(points: Sequence[Point], theme: str = "light") -> go.Figure:
    """Two drawings over one axis of speed: the score above, the latent distance below. Settings of a method are joined in
    the order given."""
    look = theme_of(theme)
    told = "right is faster, 1 being the autoregressive run; above, higher is better, below, 0 is the target's own choice"
    made = figure(look, "Quality against speed", told, width=_WIDTH, height=_HEIGHT, key=True)
    for place, method in enumerate(dict.fromkeys(point.method for point in points)):
        own = [point for point in points if point.method == method]
        scored = [point for point in own if point.score is not None]
        _line(made, place, method, scored, lambda point: point.score or 0.0, "y", False)
        _line(made, place, method, own, lambda point: point.distance, "y2", True)
    made.update_layout(
        xaxis=axis(look, "speed-up in wall time", anchor="y2"),
        yaxis=axis(look, "score", domain=[0.54, 1]),
        yaxis2=axis(look, "latent distance", domain=[0, 0.46], rangemode="tozero"),
    )
    return made


def _line(
    made: go.Figure, place: int, method: str, points: Sequence[Point], height: Callable[[Point], float], axis_name: str,
    named: bool,
) -> None:  # fmt: skip
    shape, colour = _LOOKS[place % len(_LOOKS)]
    made.add_scatter(
        x=[round(point.faster, 4) for point in points], y=[round(height(point), 4) for point in points], yaxis=axis_name,
        mode="lines+markers", name=safe(method), legendgroup=safe(method), showlegend=named, cliponaxis=False,
        marker={"symbol": shape, "size": 11, "color": colour}, line={"color": colour, "width": 1.4, "dash": "4px,3px"},
        hovertext=[_said(point) for point in points], hoverinfo="text",
    )  # fmt: skip


def _said(point: Point) -> str:
    score = "" if point.score is None else f", score {number(point.score, 3)}"
    return f"{safe(point.label)}: {number(point.faster)}×{score}, distance {number(point.distance, 3)}"
