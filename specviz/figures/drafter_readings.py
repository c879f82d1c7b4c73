"""Figures of an inspected drafter: acceptance by depth under several readings, and a logit lens over the target's states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures.theme import axis, escape, figure, percent, theme_of

_LOOKS = (
    ("circle", "solid", "#0072B2"), ("square", "8px,4px", "#D55E00"), ("diamond", "2px,4px", "#009E73"),
    ("cross", "10px,3px,2px,3px", "#CC79A7"),
)  # fmt: skip
MOST = len(_LOOKS)
"""Maximum number of readings in one figure."""


class Lens(NamedTuple):
    """A hidden state of the target, decoded by the target's final norm and head.

    ``agreement``: share of positions at which the top token equals the target's prediction. ``rank``: median rank of the
    target's prediction. ``tap``: whether the drafter reads this state.
    """

    layer: int
    agreement: float
    rank: float
    tap: bool


def acceptance_of_readings(rates: Mapping[str, Sequence[float | None]], places: int, theme: str = "light") -> go.Figure:
    """Draw a line per reading: acceptance rate by depth, given that all shallower tokens were accepted.

    ``rates``: rates [depth] by reading; the first reading is the drafter as loaded. ``places``: number of positions measured.
    """
    colours = theme_of(theme)
    subtitle = f"teacher-forced at {places} positions of the target's own answers; given acceptance at the previous depth"
    fig = figure(colours, "Acceptance by depth, as loaded and under other readings", subtitle, width=860, height=430, key=True)
    for (name, line), (shape, dash, colour) in zip(rates.items(), _LOOKS, strict=False):
        depths = list(range(1, len(line) + 1))
        fig.add_scatter(
            x=depths, y=[None if rate is None else round(rate, 4) for rate in line], mode="lines+markers", name=escape(name),
            line={"color": colour, "width": 2, "dash": dash}, marker={"size": 10, "symbol": shape, "color": colour},
            hovertext=[f"{escape(name)}, depth {depth}: {percent(rate)}" for depth, rate in zip(depths, line, strict=True)],
            hoverinfo="text", cliponaxis=False,
        )  # fmt: skip
    fig.update_xaxes(axis(colours, "depth in the draft", grid=False, dtick=1))
    fig.update_yaxes(axis(colours, "acceptance, given acceptance at the previous depth", range=[0, 1.02], tickformat=".0%"))
    return fig


def logit_lens(lenses: Sequence[Lens], theme: str = "light") -> go.Figure:
    """Draw a bar per hidden state: how often norm and head, applied to that state, already predict the target's token.

    Bars of states that the drafter reads are filled and labelled.
    """
    colours = theme_of(theme)
    taps = [one for one in lenses if one.tap]
    agreements = ", ".join(f"state {one.layer}: {percent(one.agreement)}" for one in taps)
    subtitle = f"the target's final norm and head on each hidden state; at the drafter's taps: {agreements}"
    fig = figure(colours, "Logit lens at the drafter's taps", subtitle, width=860, height=400, bargap=0.25)
    fig.add_bar(
        x=[one.layer for one in lenses], y=[round(one.agreement, 4) for one in lenses],
        marker={
            "color": [colours.accepted if one.tap else colours.paper for one in lenses],
            "line": {"width": 1.6, "color": colours.accepted},
        },
        text=[percent(one.agreement) if one.tap else "" for one in lenses], textposition="outside", cliponaxis=False,
        textfont={"size": 12, "color": colours.ink}, textangle=0, constraintext="none", hoverinfo="text",
        hovertext=[f"state {one.layer}: right {percent(one.agreement)} of the time, median rank {one.rank:g}" for one in lenses],
    )  # fmt: skip
    ticks = {"tickvals": [one.layer for one in lenses if one.tap or one.layer % 5 == 0]}
    fig.update_xaxes(axis(colours, "hidden state of the target; 0 is the embedding", grid=False, **ticks))
    fig.update_yaxes(
        axis(colours, "predicts the final token", range=[0, 1.1], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1])
    )
    return fig
