"""Summaries of a run: accepted length per step, acceptance by depth, and where the time of a step goes."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.figures.theme import axis, duration, figure, number, percent, theme_of
from specviz.trace import metrics
from specviz.trace.schema import PHASES, Trace

FEW = 5
"""Minimum number of steps for a filled marker; a hollow marker warns of an unreliable rate."""
MEANING = {
    "draft": "the drafter proposes",
    "verify": "the target's pass",
    "judge": "the rule decides",
    "commit": "the cache keeps one path",
    "host": "everything else",
}


def accepted_length(trace: Trace, theme: str = "light") -> go.Figure:
    """Draw a bar for each number of accepted tokens: how many steps accepted exactly that many. Bar 0 is hollow."""
    colours = theme_of(theme)
    counts = metrics.histogram(trace.steps)
    length = metrics.tau(trace.steps)
    cut = sum(step.cut is not None for step in trace.steps)
    subtitle = f"τ = {number(length)} tokens per pass, bonus tokens included" if trace.steps else "no finished steps yet"
    if cut:
        subtitle += f", without {cut} step{'s' if cut > 1 else ''} cut short"
    fig = figure(colours, "Accepted drafted tokens per step", subtitle, width=720, height=380, bargap=0.28)
    fig.add_bar(
        x=list(range(len(counts))),
        y=counts,
        text=[str(count) if count else "" for count in counts],
        textposition="outside",
        cliponaxis=False,
        textfont={"size": 13, "color": colours.ink},
        marker={
            "color": [colours.paper if i == 0 else colours.accepted for i in range(len(counts))],
            "line": {"width": 2, "color": [colours.rejected if i == 0 else colours.accepted for i in range(len(counts))]},
        },
        hovertext=[f"{count} of {len(trace.steps)} steps accepted {i}" for i, count in enumerate(counts)],
        hoverinfo="text",
    )
    fig.update_xaxes(axis(colours, "drafted tokens accepted", grid=False, dtick=max(1, len(counts) // 16)))
    fig.update_yaxes(axis(colours, "steps", rangemode="tozero", tickformat="d"))
    return fig


def acceptance_by_depth(trace: Trace, theme: str = "light") -> go.Figure:
    """Draw a point per depth: among the steps that judged a node at that depth, the share that accepted one."""
    colours = theme_of(theme)
    shares, judged = metrics.accepted_by_depth(trace.steps), [judged for _, judged in metrics.verdicts_by_depth(trace.steps)]
    subtitle = "nothing was drafted"
    if shares:
        subtitle = "of the steps that judged a token at this depth, the share that accepted one"
    elif any(step.verified for step in trace.steps):
        subtitle = "the rejected tokens were not recorded"
    fig = figure(colours, "Acceptance by depth", subtitle, width=720, height=380)
    depths = list(range(1, len(shares) + 1))
    hover_rows = zip(depths, shares, judged, strict=True)
    fill = [colours.accepted if count >= FEW else colours.paper for count in judged]
    fig.add_scatter(
        x=depths, y=[None if share is None else round(share, 4) for share in shares], mode="lines+markers+text",
        text=[percent(share) for share in shares], textposition="top center", textfont={"size": 12, "color": colours.ink},
        line={"color": colours.accepted, "width": 2}, cliponaxis=False, hoverinfo="text",
        marker={"size": 11, "color": fill, "line": {"width": 2, "color": colours.accepted}},
        hovertext=[f"depth {depth}: {percent(share)} of {count} steps" for depth, share, count in hover_rows],
    )  # fmt: skip
    label_stride = max(1, len(depths) // 14)
    labels = [f"{depth}<br>n = {count}" for depth, count in zip(depths, judged, strict=True)]
    ticks = {"tickvals": depths[::label_stride], "ticktext": labels[::label_stride], "range": [0.5, max(len(depths), 1) + 0.5]}
    fig.update_xaxes(axis(colours, "depth in the draft, with the number n of steps that judged a token", grid=False, **ticks))
    fig.update_yaxes(axis(colours, "", range=[0, 1.12], tickvals=[0, 0.25, 0.5, 0.75, 1], tickformat=".0%"))
    return fig


def time_shares(trace: Trace, theme: str = "light") -> go.Figure:
    """Draw a bar per phase: mean milliseconds per step and share of the step. Prefill is excluded."""
    colours = theme_of(theme)
    spent = metrics.seconds(trace.steps)
    steps = len(trace.steps)
    phases = [phase for phase in PHASES if spent[phase]] or [*PHASES]
    means = [spent[phase] / steps * 1e9 if steps else 0.0 for phase in phases]
    shares = [metrics.ratio(spent[phase], spent["total"]) for phase in phases]
    subtitle = (
        f"a step takes {duration(sum(means))} on average, over {steps} step{'' if steps == 1 else 's'}"
        if steps
        else "no finished steps yet"
    )
    recording = sum(step.time.aside for step in trace.steps) / steps if steps else 0.0
    if recording:
        subtitle += f"; recording took another {duration(recording)}, not counted"
    if phases == ["host"]:
        subtitle += "; its phases were not recorded"
    fig = figure(colours, "Where the time of a step goes", subtitle, width=720, height=330, bargap=0.38)
    fig.add_bar(
        orientation="h",
        y=phases,
        x=[round(mean / 1e6, 4) for mean in means],
        marker={"color": [getattr(colours, phase) for phase in phases]},
        text=[f"{percent(share)} · {duration(mean)}" for share, mean in zip(shares, means, strict=True)],
        textposition="outside",
        cliponaxis=False,
        textfont={"size": 13, "color": colours.ink},
        hovertext=[f"{phase}: {MEANING[phase]}" for phase in phases],
        hoverinfo="text",
    )
    fig.update_xaxes(axis(colours, "mean milliseconds per step", range=[0, max([*means, 1.0]) / 1e6 * 1.25]))
    ticks = [f"{phase}<br><span style='font-size:11px;color:{colours.mute}'>{MEANING[phase]}</span>" for phase in phases]
    fig.update_yaxes(axis(colours, "", grid=False, autorange="reversed", tickvals=phases, ticktext=ticks))
    fig.update_layout(margin={"l": 160})
    return fig
