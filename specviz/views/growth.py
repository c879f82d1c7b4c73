"""A tree grown by the drafter's confidence: every candidate at its path's probability, the beam, the rerank's cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from specviz.trace.schema import ACCEPTED, PRUNED, REJECTED, RELAXED, RESAMPLED, Step, Trace
from specviz.views.notes import Story, story
from specviz.views.theme import MONO, Theme, axis, count, figure, number, safe, theme_of, visible

_WIDTH, _HEIGHT = 1000, 520
_NEAR = 0.045
"""Dots closer than this share of the height are set side by side."""
_APART = 0.055


def growth(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Across: level; up: log of the product of the drafter's probabilities. What lies below the line was pruned."""
    step, note = story(trace, index, "growth")
    look = theme_of(theme)
    values = note.numbers("value", len(step.nodes))
    beams = note.levels("beams", len(step.nodes))
    kept = [node for node, one in enumerate(step.nodes) if node and one.status != PRUNED]
    considered = max(note.whole("considered"), len(step.nodes) - 1)
    made = figure(look, *_headline(step, len(kept), considered, note), width=_WIDTH, height=_HEIGHT, key=True)
    high = [round(max(min(value, 0.0), -60.0) / math.log(10), 3) for value in values]
    across = _across(step, high)
    _edges(made, look, step, across, high)
    _dots(made, look, step, across, high, beams)
    lowest = min([-1.0, *high])
    deepest = max(step.depths)
    if kept and len(kept) < len(step.nodes) - 1:
        _cut(made, look, min(high[node] for node in kept), len(kept))
    ticks = {"tickvals": list(range(deepest + 1)), "range": [-0.3, deepest + 0.5]}
    made.update_xaxes(axis(look, "level", grid=False, **ticks))
    powers = list(range(0, math.floor(lowest) - 1, -1 - int(-lowest // 8)))
    scale = {"tickvals": powers, "ticktext": [f"{10**power:g}" for power in powers]}
    made.update_yaxes(axis(look, "probability of the path", range=[lowest * 1.04, -lowest * 0.09], **scale))
    return made


def _headline(step: Step, kept: int, considered: int, note: Story) -> tuple[str, str]:
    name = f"Step {step.index + 1}"
    if not considered:
        return f"{name} · nothing was drafted", "the drafter offered no candidate, so there was no tree to grow"
    title = f"{name} · {count(considered, 'candidate')}, {kept} sent, {len(step.path)} accepted"
    said = "expand: ringed tokens, the beam, are grown further; rerank: the best of all candidates go to the target"
    return title, _chosen(note) or said


def _chosen(note: Story) -> str:
    """Why trees are as deep as they are, where nobody stated a depth; nothing where somebody did."""
    depth = note.part("depth")
    if depth is None:
        return ""
    levels = count(depth.whole("levels"), "level")
    if depth.maybe_number("gain") is None:
        return f"at most {levels}: the usual depth, as nobody measured what others bring with this drafter and beam"
    return (
        f"at most {levels}: what pays most here by the calibration, foretold τ {number(depth.number('tau'))} and "
        f"{number(depth.number('gain'))}×, a forward at {number(depth.number('forward'))} of a pass"
    )


def _across(step: Step, high: Sequence[float]) -> list[float]:
    """The level of each node, moved aside where others of its level stand at the same height."""
    depths = step.depths
    tall = -min([-1.0, *high])
    found = [float(depth) for depth in depths]
    for depth in range(1, max(depths) + 1):
        placed: list[tuple[float, float]] = []
        here = [node for node, one in enumerate(depths) if one == depth]
        for node in sorted(here, key=lambda one: -high[one]):
            near = [at for where, at in placed if abs(where - high[node]) < _NEAR * tall]
            turns = (0.0, *(sign * step_ * _APART for step_ in range(1, 8) for sign in (-1, 1)))
            at = next((turn for turn in turns if all(abs(turn - one) > _APART * 0.9 for one in near)), 0.0)
            placed.append((high[node], at))
            found[node] = round(depth + at, 3)
    return found


def _edges(made: go.Figure, look: Theme, step: Step, across: Sequence[float], high: Sequence[float]) -> None:
    """Thin lines to what was kept, a thick one along the accepted path."""
    on = set(step.path)
    quiet = [node for node, one in enumerate(step.nodes) if node and one.status != PRUNED and node not in on]
    for nodes, line in ((quiet, {"color": look.line, "width": 1}), (step.path, {"color": look.accepted, "width": 4})):
        x: list[Any] = []
        y: list[Any] = []
        for node in nodes:
            up = step.nodes[node].parent
            x += [across[up], across[node], None]
            y += [high[up], high[node], None]
        if x:
            made.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False)


def _dots(
    made: go.Figure, look: Theme, step: Step, across: Sequence[float], high: Sequence[float], beams: list[list[int]]
) -> None:
    kinds = (
        ("pruned", (PRUNED,), {"symbol": "diamond-open", "size": 7, "color": look.quiet}),
        ("never judged", ("skipped",), {"symbol": "circle-open", "size": 8, "color": look.quiet}),
        ("rejected", (REJECTED, RESAMPLED), {"symbol": "x-thin", "size": 8, "color": look.rejected}),
        ("accepted", (ACCEPTED, RELAXED), {"symbol": "circle", "size": 12, "color": look.accepted}),
    )
    for name, statuses, marker in kinds:
        nodes = [node for node, one in enumerate(step.nodes) if one.status in statuses]
        if not nodes:
            continue
        width = 2 if "open" in marker["symbol"] or "thin" in marker["symbol"] else 0
        made.add_scatter(
            x=[across[node] for node in nodes], y=[high[node] for node in nodes], name=name, mode="markers",
            marker={**marker, "line": {"width": width / (2 if name == "pruned" else 1), "color": marker["color"]}},
            hovertext=[_hover(step, node, high[node]) for node in nodes], hoverinfo="text",
        )  # fmt: skip
    beam = sorted({node for level in beams for node in level if node})
    if beam:
        ring = {"symbol": "circle-open", "size": 14, "color": look.draft, "line": {"width": 2}}
        made.add_scatter(
            x=[across[node] for node in beam], y=[high[node] for node in beam], name="beam: grown further",
            mode="markers", marker=ring, hoverinfo="skip",
        )  # fmt: skip
    _names(made, look, step, across, high)


def _names(made: go.Figure, look: Theme, step: Step, across: Sequence[float], high: Sequence[float]) -> None:
    """The root and the accepted path carry their words."""
    nodes = [0, *step.path]
    made.add_scatter(
        x=[across[node] for node in nodes], y=[high[node] for node in nodes], mode="markers+text", showlegend=False,
        text=[f"<b>{safe(visible(step.nodes[node].text, 14))}</b>" for node in nodes], textposition="top right",
        textfont={"family": MONO, "size": 13, "color": look.ink}, hoverinfo="skip", cliponaxis=False,
        marker={
            "size": [9, *([16] * len(step.path))], "symbol": "square", "line": {"width": 0},
            "color": [look.ink, *(["rgba(0,0,0,0)"] * len(step.path))],
        },
    )  # fmt: skip


def _hover(step: Step, node: int, high: float) -> str:
    one = step.nodes[node]
    return f"{safe(visible(one.text, 24))}<br>q {number(one.q, 3)}, path {10**high:.2g}"


def _cut(made: go.Figure, look: Theme, low: float, kept: int) -> None:
    """The line of the rerank, just below the least that was kept."""
    at = low * 1.012 - 0.01
    made.add_hline(y=at, line={"color": look.ink, "width": 1.5, "dash": "6px,4px"})
    made.add_annotation(
        x=1, xref="paper", y=at, yref="y", text=f"rerank: the best {kept} lie above", showarrow=False, xanchor="right",
        yanchor="top", font={"size": 13, "color": look.ink}, bgcolor=look.paper,
    )  # fmt: skip
