"""Acceptance rate by depth, conditional on reaching the depth."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.figures.theme import axis, figure, percent, theme_of
from specviz.trace import metrics
from specviz.trace.schema import Trace

FEW = 5
"""Minimum number of steps for a filled marker; a hollow marker warns of an unreliable rate."""


def acceptance_by_depth(trace: Trace, theme: str = "light") -> go.Figure:
    """Draw a point per depth: among the steps that judged a node at that depth, the share that accepted one."""
    look = theme_of(theme)
    shares, judged = metrics.accepted_by_depth(trace.steps), [judged for _, judged in metrics.verdicts_by_depth(trace.steps)]
    subtitle = "of the steps that judged a token at this depth, the share that accepted one" if shares else "nothing was drafted"
    fig = figure(look, "Acceptance by depth", subtitle, width=720, height=380)
    depths = list(range(1, len(shares) + 1))
    hover_rows = zip(depths, shares, judged, strict=True)
    fill = [look.accepted if count >= FEW else look.paper for count in judged]
    fig.add_scatter(
        x=depths, y=[None if share is None else round(share, 4) for share in shares], mode="lines+markers+text",
        text=[percent(share) for share in shares], textposition="top center", textfont={"size": 12, "color": look.ink},
        line={"color": look.accepted, "width": 2}, cliponaxis=False, hoverinfo="text",
        marker={"size": 11, "color": fill, "line": {"width": 2, "color": look.accepted}},
        hovertext=[f"depth {depth}: {percent(share)} of {count} steps" for depth, share, count in hover_rows],
    )  # fmt: skip
    label_stride = max(1, len(depths) // 14)
    labels = [f"{depth}<br>n = {count}" for depth, count in zip(depths, judged, strict=True)]
    ticks = {"tickvals": depths[::label_stride], "ticktext": labels[::label_stride], "range": [0.5, max(len(depths), 1) + 0.5]}
    fig.update_xaxes(axis(look, "depth in the draft, with the number n of steps that judged a token", grid=False, **ticks))
    fig.update_yaxes(axis(look, "", range=[0, 1.12], tickvals=[0, 0.25, 0.5, 0.75, 1], tickformat=".0%"))
    return fig
