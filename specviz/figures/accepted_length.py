"""Histogram of accepted length per step."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.figures.theme import axis, figure, number, theme_of
from specviz.trace import metrics
from specviz.trace.schema import Trace


def accepted_length(trace: Trace, theme: str = "light") -> go.Figure:
    """Draw a bar for each number of accepted tokens: how many steps accepted exactly that many. Bar 0 is hollow."""
    look = theme_of(theme)
    counts = metrics.histogram(trace.steps)
    length = metrics.tau(trace.steps)
    cut = sum(step.cut is not None for step in trace.steps)
    subtitle = f"τ = {number(length)} tokens per pass, the bonus token included" if trace.steps else "no finished steps yet"
    if cut:
        subtitle += f", without {cut} step{'s' if cut > 1 else ''} cut short"
    fig = figure(look, "Accepted drafted tokens per step", subtitle, width=720, height=380, bargap=0.28)
    total = len(trace.steps)
    fig.add_bar(
        x=list(range(len(counts))),
        y=counts,
        text=[str(count) if count else "" for count in counts],
        textposition="outside",
        cliponaxis=False,
        textfont={"size": 13, "color": look.ink},
        marker={
            "color": [look.paper if i == 0 else look.accepted for i in range(len(counts))],
            "line": {"width": 2, "color": [look.rejected if i == 0 else look.accepted for i in range(len(counts))]},
        },
        hovertext=[f"{count} of {total} steps accepted {i}, so they emitted {i + 1}" for i, count in enumerate(counts)],
        hoverinfo="text",
    )
    fig.update_xaxes(axis(look, "drafted tokens accepted", grid=False, dtick=max(1, len(counts) // 16)))
    fig.update_yaxes(axis(look, "steps", rangemode="tozero", tickformat="d"))
    return fig
