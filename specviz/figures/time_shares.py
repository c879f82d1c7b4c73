"""Mean time of a step by phase: draft, verify, judge, commit and host."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.figures.theme import axis, duration, figure, percent, theme_of
from specviz.trace import metrics
from specviz.trace.schema import PHASES, Trace

MEANING = {
    "draft": "the drafter proposes",
    "verify": "the target's pass",
    "judge": "the rule decides",
    "commit": "the cache keeps one path",
    "host": "everything else",
}


def time_shares(trace: Trace, theme: str = "light") -> go.Figure:
    """Draw a bar per phase: mean milliseconds per step and share of the step. Prefill is excluded."""
    look = theme_of(theme)
    spent = metrics.seconds(trace.steps)
    steps = len(trace.steps)
    means = [spent[phase] / steps * 1e9 if steps else 0.0 for phase in PHASES]
    shares = [metrics.ratio(spent[phase], spent["total"]) for phase in PHASES]
    subtitle = (
        f"a step takes {duration(sum(means))} on average, over {steps} step{'' if steps == 1 else 's'}"
        if steps
        else "no finished steps yet"
    )
    recording = sum(step.time.aside for step in trace.steps) / steps if steps else 0.0
    if recording:
        subtitle += f"; recording took another {duration(recording)}, not counted"
    fig = figure(look, "Where the time of a step goes", subtitle, width=720, height=330, bargap=0.38)
    fig.add_bar(
        orientation="h",
        y=list(PHASES),
        x=[round(mean / 1e6, 4) for mean in means],
        marker={"color": [getattr(look, phase) for phase in PHASES]},
        text=[f"{percent(share)} · {duration(mean)}" for share, mean in zip(shares, means, strict=True)],
        textposition="outside",
        cliponaxis=False,
        textfont={"size": 13, "color": look.ink},
        hovertext=[f"{phase}: {MEANING[phase]}" for phase in PHASES],
        hoverinfo="text",
    )
    fig.update_xaxes(axis(look, "mean milliseconds per step", range=[0, max([*means, 1.0]) / 1e6 * 1.25]))
    ticks = [f"{phase}<br><span style='font-size:11px;color:{look.mute}'>{MEANING[phase]}</span>" for phase in PHASES]
    fig.update_yaxes(axis(look, "", grid=False, autorange="reversed", tickvals=list(PHASES), ticktext=ticks))
    fig.update_layout(margin={"l": 160})
    return fig
