"""Quality against speed, one point for each setting of each image method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures.theme import axis, escape, figure, number, theme_of

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
    subtitle = "right is faster, 1 being the autoregressive run; above, higher is better, below, 0 is the target's own choice"
    fig = figure(look, "Quality against speed", subtitle, width=_WIDTH, height=_HEIGHT, key=True)
    for place, method in enumerate(dict.fromkeys(point.method for point in points)):
        method_points = [point for point in points if point.method == method]
        scored = [point for point in method_points if point.score is not None]
        _line(fig, place, method, scored, lambda point: point.score or 0.0, "y", False)
        _line(fig, place, method, method_points, lambda point: point.distance, "y2", True)
    fig.update_layout(
        xaxis=axis(look, "speed-up in wall time", anchor="y2"),
        yaxis=axis(look, "score", domain=[0.54, 1]),
        yaxis2=axis(look, "latent distance", domain=[0, 0.46], rangemode="tozero"),
    )
    return fig


def _line(
    fig: go.Figure, place: int, method: str, points: Sequence[Point], height: Callable[[Point], float], axis_name: str,
    named: bool,
) -> None:  # fmt: skip
    shape, colour = _LOOKS[place % len(_LOOKS)]
    fig.add_scatter(
        x=[round(point.faster, 4) for point in points], y=[round(height(point), 4) for point in points], yaxis=axis_name,
        mode="lines+markers", name=escape(method), legendgroup=escape(method), showlegend=named, cliponaxis=False,
        marker={"symbol": shape, "size": 11, "color": colour}, line={"color": colour, "width": 1.4, "dash": "4px,3px"},
        hovertext=[_hover(point) for point in points], hoverinfo="text",
    )  # fmt: skip


def _hover(point: Point) -> str:
    score = "" if point.score is None else f", score {number(point.score, 3)}"
    return f"{escape(point.label)}: {number(point.faster)}×{score}, distance {number(point.distance, 3)}"
