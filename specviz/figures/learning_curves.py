"""Learning curves of the drafters: acceptance length on held-out answers against how much they learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures.theme import axis, escape, figure, number, theme_of

FROM_FRESH = ", from fresh"
"""How the name of a drafter ends that began with a new network: it has the look of the same drafter without, but dashed."""
_LOOKS = (
    ("circle", "#0072B2"), ("square", "#D55E00"), ("diamond", "#009E73"), ("cross", "#CC79A7"), ("triangle-up", "#56B4E9"),
    ("star", "#7d858e"), ("hexagon", "#8a6d1f"), ("triangle-down", "#7b4fb5"), ("x", "#b5303c"), ("bowtie", "#2b2f36"),
)  # fmt: skip
_WIDTH, _HEIGHT = 1040, 560
_TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)


class Milestone(NamedTuple):
    """After ``tokens`` answer tokens (None: nobody counted), ``distinct`` of them read for the first time: ``tau``, the
    acceptance length on held-out answers, and by how much it is larger on learned ones."""

    tokens: float | None
    distinct: float
    tau: float
    gap: float


def learning_curves(curves: Mapping[str, Sequence[Milestone]], theme: str = "light") -> go.Figure:
    """A line a drafter. Filled marks are milestones at which all text had been read once at most: there more data and more
    training are one. Open marks come after some of it was read again. A milestone without ``tokens`` has no place."""
    look = theme_of(theme)
    subtitle = "on held-out answers; filled: all text read at most once, open: some of it again; dashed: made for the curve"
    fig = figure(look, "Learning curves of the drafters", subtitle, width=_WIDTH, height=_HEIGHT)
    drafters = list(dict.fromkeys(name.removesuffix(FROM_FRESH) for name in curves))
    for name, milestones in curves.items():
        shape, colour = _LOOKS[drafters.index(name.removesuffix(FROM_FRESH)) % len(_LOOKS)]
        placed = [(one.tokens, one) for one in milestones if one.tokens is not None]
        fig.add_scatter(
            x=[round(tokens / 1e6, 4) for tokens, _ in placed], y=[round(one.tau, 4) for _, one in placed],
            mode="lines+markers", name=escape(name),
            line={"color": colour, "width": 1.6, "dash": "dash" if name.endswith(FROM_FRESH) else "solid"},
            marker={
                "size": 9, "color": colour,
                "symbol": [shape if tokens <= one.distinct else f"{shape}-open" for tokens, one in placed],
            },
            hovertext=[_hover(name, tokens, one) for tokens, one in placed], hoverinfo="text",
        )  # fmt: skip
    fig.update_layout(
        xaxis=axis(
            look, "million answer tokens learned from, each doubling as wide as the last", type="log",
            tickvals=_TICKS, ticktext=[f"{tick:g}" for tick in _TICKS],
        ),
        yaxis=axis(look, "acceptance length"), showlegend=True,
        legend={"orientation": "v", "x": 1.01, "xanchor": "left", "y": 1, "yanchor": "top"},
    )  # fmt: skip
    return fig


def _hover(name: str, tokens: float, one: Milestone) -> str:
    read = f"{number(tokens / 1e6)} million tokens, {number(one.distinct / 1e6)} million distinct"
    return f"{escape(name)}: {number(one.tau)} after {read}; {number(one.gap)} more on learned answers"
