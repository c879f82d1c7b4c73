"""A learned vector for every step of drafting: how long each is, and how far drafting gets with them and without."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.trace.schema import Trace
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, axis, figure, percent, theme_of

_LEVELS = 16


def residuals(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Left a bar a level: how often the drafter was right there so far; right the length of each step's vector."""
    step, note = story(trace, index, "residuals")
    look, compared = theme_of(theme), "without" in note.data
    total = note.wholes("asked" if compared else "reached")[:_LEVELS]
    made = figure(look, *_headline(step.index, compared), width=960, height=400, key=True, barmode="group", bargap=0.3)
    _bars(made, look, note, compared, total)
    norms = note.finite("norms")[:_LEVELS]
    plain = {"showlegend": False, "marker": {"color": look.draft}, "hoverinfo": "skip"}
    made.add_bar(x=list(range(len(norms))), y=norms, xaxis="x2", yaxis="y2", **plain)
    made.update_layout(
        xaxis=axis(look, "level of the tree", grid=False, domain=[0, 0.64], dtick=1),
        yaxis=axis(look, range=[0, 1.12], tickformat=".0%"),
        xaxis2=axis(look, "step of drafting", grid=False, domain=[0.74, 1], anchor="y2", dtick=1),
        yaxis2=axis(look, "length of its vector", anchor="x2", rangemode="tozero"),
    )
    return made


def _headline(index: int, compared: bool) -> tuple[str, str]:
    title = f"Step {index + 1} · level by level, with a vector for each step of drafting"
    if compared:
        return title, "how often the drafter's first guess along the emitted text was right, over the run so far"
    return title, "how often a drafted level was kept, over the run so far"


def _bars(made: go.Figure, look: Theme, note: Story, compared: bool, total: list[int]) -> None:
    """A group of bars a level that was reached."""
    names = {"with": "with its vectors", "without": "without"} if compared else {"kept": "kept by the target"}
    levels = [level for level, many in enumerate(total) if many]
    for place, (name, said) in enumerate(names.items()):
        values = _shares(note, name, total)
        made.add_bar(
            x=[level + 1 for level in levels], y=[values[level] for level in levels], name=said,
            marker=_marker(look, place), text=[percent(values[level]) for level in levels], textposition="outside",
            textfont={"size": 12, "color": look.mute}, hoverinfo="skip",
        )  # fmt: skip


def _shares(note: Story, name: str, total: list[int]) -> list[float]:
    kept = note.wholes(name)[: len(total)]
    if len(kept) != len(total):
        raise note.wrong(name, f"a list of {len(total)} counts")
    return [min(1.0, one / many) if many else 0.0 for one, many in zip(kept, total, strict=True)]


def _marker(look: Theme, place: int) -> dict[str, object]:
    if not place:
        return {"color": look.accepted}
    return {
        "color": look.paper,
        "line": {"color": look.accepted, "width": 1.6},
        "pattern": {"shape": "/", "fgcolor": look.accepted},
    }
