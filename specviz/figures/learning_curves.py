"""Learning curves of the drafters: acceptance length on held-out answers against how much they learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures.theme import axis, escape, figure, number, theme_of

_LOOKS = (
    ("circle", "#0072B2"), ("square", "#D55E00"), ("diamond", "#009E73"), ("cross", "#CC79A7"), ("triangle-up", "#56B4E9"),
    ("star", "#7d858e"),
)  # fmt: skip
_WIDTH, _HEIGHT = 960, 520


class Milestone(NamedTuple):
    """After ``tokens`` answer tokens (None: nobody counted), ``distinct`` of them read for the first time: ``tau``, the
    acceptance length on held-out answers, and by how much it is larger on learned ones."""

    tokens: float | None
    distinct: float
    tau: float
    gap: float


def learning_curves(curves: Mapping[str, Sequence[Milestone]], theme: str = "light") -> go.Figure:
    """A line a drafter. Filled marks are milestones at which every dialogue had been read once at most: there more data and more
    training are one. Open marks are of later passes over the same dialogues. A milestone without ``tokens`` has no place."""
    look = theme_of(theme)
    subtitle = "tokens a target pass on held-out answers; filled: every dialogue read at most once, open: read again"
    fig = figure(look, "Learning curves of the drafters", subtitle, width=_WIDTH, height=_HEIGHT, key=True)
    for place, (name, milestones) in enumerate(curves.items()):
        shape, colour = _LOOKS[place % len(_LOOKS)]
        placed = [(one.tokens, one) for one in milestones if one.tokens is not None]
        fig.add_scatter(
            x=[round(tokens / 1e6, 4) for tokens, _ in placed], y=[round(one.tau, 4) for _, one in placed],
            mode="lines+markers", name=escape(name), line={"color": colour, "width": 1.6},
            marker={
                "size": 10, "color": colour,
                "symbol": [shape if tokens <= one.distinct else f"{shape}-open" for tokens, one in placed],
            },
            hovertext=[_hover(name, tokens, one) for tokens, one in placed], hoverinfo="text",
        )  # fmt: skip
    fig.update_layout(
        xaxis=axis(look, "million answer tokens learned from", rangemode="tozero"), yaxis=axis(look, "acceptance length")
    )
    return fig


def _hover(name: str, tokens: float, one: Milestone) -> str:
    read = f"{number(tokens / 1e6)} million tokens, {number(one.distinct / 1e6)} million distinct"
    return f"{escape(name)}: {number(one.tau)} after {read}; {number(one.gap)} more on learned answers"
