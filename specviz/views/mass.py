"""How much of the drafter's probability the beam still holds at each level, the threshold, and where growing stopped."""

from __future__ import annotations

import math
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.trace.schema import Step, Trace
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, axis, count, figure, number, percent, theme_of, wrapped

_WIDTH, _HEIGHT = 860, 400
_MOST = 64


class _Told(NamedTuple):
    """The note: masses and threshold as probabilities, levels counted from 1."""

    held: list[float]
    tested: set[int]
    threshold: float
    stopped: int | None
    limit: int
    below: list[float]


def mass(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """A bar a level; tested levels are named, the stop is a thick line, levels never grown are dotted."""
    step, note = story(trace, index, "mass")
    look = theme_of(theme)
    told = _read(note)
    title, said = _headline(step, told)
    made = figure(look, title, wrapped(said, _WIDTH), width=_WIDTH, height=_HEIGHT, bargap=0.34)
    levels = list(range(1, len(told.held) + 1))
    low = [level in told.tested and one < told.threshold for level, one in zip(levels, told.held, strict=True)]
    made.add_bar(
        x=levels, y=[round(one, 4) for one in told.held], text=[number(one) for one in told.held],
        textposition="outside", cliponaxis=False, textfont={"size": 13, "color": look.ink},
        marker={"color": look.draft, "line": {"width": [2.5 if one else 0 for one in low], "color": look.rejected}},
        hovertext=[f"level {level}: {one:.3g}" for level, one in zip(levels, told.held, strict=True)],
        hoverinfo="text",
    )  # fmt: skip
    made.update_layout(shapes=_shapes(look, told))
    _words(made, look, told)
    names = [f"{level}<br>tested" if level in told.tested else str(level) for level in range(1, told.limit + 1)]
    ticks = {"tickvals": list(range(1, told.limit + 1)), "ticktext": names, "range": [0.4, told.limit + 0.6]}
    made.update_xaxes(axis(look, "level", grid=False, **ticks))
    made.update_yaxes(axis(look, "probability the beam holds", range=[0, 1.1], tickvals=[0, 0.25, 0.5, 0.75, 1]))
    return made


def _read(note: Story) -> _Told:
    held = [min(1.0, math.exp(min(0.0, value))) for value in note.finite("mass")][:_MOST]
    limit = min(_MOST, max(1, len(held), note.whole("limit")))
    threshold = math.exp(min(0.0, note.number("threshold")))
    stopped, below = note.maybe_whole("stopped"), note.finite("below") if "below" in note.data else []
    return _Told(held, set(note.wholes("tested")), threshold, stopped, limit, below)


def _headline(step: Step, told: _Told) -> tuple[str, str]:
    name = f"Step {step.index + 1}"
    if told.stopped is None:
        title = f"{name} · grown to {count(len(told.held), 'level')} without a stop"
        return title, f"at every tested level the beam held at least {number(told.threshold)} of the probability"
    last = told.held[told.stopped - 1] if 0 < told.stopped <= len(told.held) else None
    title = f"{name} · stopped after level {told.stopped} of at most {told.limit}"
    said = (
        f"the beam then held {number(last)} of the drafter's probability, less than {number(told.threshold)}: a deeper "
        "guess would hardly be right"
    )
    if 0 < told.stopped <= len(told.below):
        said += f"; in the calibration {percent(told.below[told.stopped - 1])} of the beams at this level held less"
    return title, said


def _shapes(look: Theme, told: _Told) -> list[dict[str, object]]:
    """The threshold, the stop, and empty frames where nothing was grown."""
    line = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": told.threshold, "y1": told.threshold}
    made: list[dict[str, object]] = [{**line, "line": {"color": look.ink, "width": 1.5, "dash": "6px,4px"}}]
    if len(told.held) < told.limit:
        frames = "".join(
            f"M{level - 0.33:g},0L{level - 0.33:g},1L{level + 0.33:g},1L{level + 0.33:g},0Z"
            for level in range(len(told.held) + 1, told.limit + 1)
        )
        dotted = {"color": look.quiet, "width": 1.2, "dash": "1.5px,3px"}
        made.append({"type": "path", "path": frames, "line": dotted, "layer": "below"})
    if told.stopped is not None:
        at = told.stopped + 0.5
        stop = {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1.06}
        made.append({**stop, "line": {"color": look.ink, "width": 4}})
    return made


def _words(made: go.Figure, look: Theme, told: _Told) -> None:
    plain = {"showarrow": False, "font": {"size": 13, "color": look.ink}, "bgcolor": look.paper}
    made.add_annotation(
        x=1, xref="paper", y=told.threshold, text=f"threshold {number(told.threshold)}", xanchor="right",
        yanchor="bottom", **plain,
    )  # fmt: skip
    if told.stopped is not None:
        said = "growing stopped" if told.stopped < told.limit else "stopped"
        made.add_annotation(
            x=told.stopped + 0.56, y=1.03, text=f"<b>{said}</b>", xanchor="left", yanchor="middle", **plain
        )
