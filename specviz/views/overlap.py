"""Target and drafter laws at judged nodes: where they agree a draft is kept, what is left over is drawn again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from specviz.trace.schema import Step, Trace
from specviz.views.notes import Story, node_of, story
from specviz.views.theme import MONO, Theme, axis, figure, percent, safe, theme_of, visible

_COLUMNS = 3
_PANEL = 250
_LETTERS = 14


def overlap(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """A panel a node, a bar a token: solid is min(p, q), hatched what only the target wants, hollow the drafter."""
    step, note = story(trace, index, "overlap")
    look = theme_of(theme)
    rows = note.rows("positions")
    lines = -(-len(rows) // _COLUMNS) or 1
    shares = [row.share("overlap") for row in rows]
    mean = sum(shares) / len(shares) if shares else None
    title = f"Step {step.index + 1} · where drafter and target agree"
    subtitle = (
        f"the overlap of the two laws is the chance that one drawn token survives there, {percent(mean)} on average"
        if rows
        else "no draws were judged in this step"
    )
    made = figure(
        look, title, subtitle, width=1000, height=130 + _PANEL * lines, key=bool(rows), barmode="stack", bargap=0.3
    )
    made.update_layout(margin={"b": 24})
    most = max((value for row in rows for name in "pq" for value in row.numbers(name, len(row.tokens()))), default=1.0)
    for place, row in enumerate(rows):
        _panel(made, look, step, row, shares[place], _place(place, lines), max(0.2, most * 1.05))
    return made


@dataclass(frozen=True)
class _Place:
    """A panel: what Plotly calls its axes after "x" and "y", and its edges as shares of the drawing area."""

    number: str
    left: float
    right: float
    low: float
    top: float


def _panel(made: go.Figure, look: Theme, step: Step, row: Story, share: float, where: _Place, most: float) -> None:
    texts = [safe(visible(text, _LETTERS)) for text in row.texts()]
    p, q = row.numbers("p", len(texts)), row.numbers("q", len(texts))
    both = [min(one, other) for one, other in zip(p, q, strict=True)]
    _bars(made, where, "both: kept", both, most, _filled(look.accepted, look.accepted))
    wanted = [one - least for one, least in zip(p, both, strict=True)]
    hatch = {"pattern": {"shape": "/", "fgcolor": look.bonus, "size": 6, "solidity": 0.25, "fillmode": "overlay"}}
    _bars(
        made,
        where,
        "target only: drawn again from here",
        wanted,
        most,
        _filled(look.tints["bonus"], look.bonus) | hatch,
    )
    surplus = [other - least for other, least in zip(q, both, strict=True)]
    _bars(made, where, "drafter only: rejected", surplus, most, _filled(look.paper, look.rejected))
    told = zip(texts, p, q, strict=True)
    hover = [f"{text}: target p {one:.3g}, drafter q {other:.3g}" for text, one, other in told]
    made.update_traces(hovertext=hover, hoverinfo="text", selector={"yaxis": f"y{where.number}"})
    ticks = {"tickvals": list(range(len(texts))), "ticktext": texts}
    below = axis(look, domain=[where.left, where.right], range=[0, most], anchor=f"y{where.number}", nticks=5)
    beside = axis(
        look, grid=False, domain=[where.low, where.top], autorange="reversed", anchor=f"x{where.number}", **ticks
    )
    beside["tickfont"] = {"family": MONO, "size": 12, "color": look.ink}
    made.update_layout({f"xaxis{where.number}": below, f"yaxis{where.number}": beside})
    node = step.nodes[node_of(step, row)]
    made.add_annotation(
        text=f"after {safe(visible(node.text, _LETTERS))}: <b>{percent(share)}</b>", showarrow=False, yshift=2,
        x=where.left, y=where.top, xref="paper", yref="paper", xanchor="left", yanchor="bottom",
        font={"size": 13, "color": look.ink},
    )  # fmt: skip


def _bars(made: go.Figure, where: _Place, name: str, lengths: list[float], most: float, marker: dict[str, Any]) -> None:
    """One part of every bar of a panel; a part too short to see is left out, its outline would show."""
    made.add_bar(
        orientation="h", x=[round(length, 4) if length > most / 500 else None for length in lengths],
        y=list(range(len(lengths))), name=name, legendgroup=name, showlegend=not where.number, marker=marker,
        xaxis=f"x{where.number}", yaxis=f"y{where.number}",
    )  # fmt: skip


def _filled(color: str, outline: str) -> dict[str, Any]:
    return {"color": color, "line": {"color": outline, "width": 1.4}}


def _place(place: int, lines: int) -> _Place:
    line, column = divmod(place, _COLUMNS)
    wide, high = 1 / _COLUMNS, 1 / lines
    number = "" if place == 0 else str(place + 1)
    return _Place(
        number,
        column * wide + 0.065,
        (column + 1) * wide - 0.015,
        1 - (line + 1) * high + 0.16 * high,
        1 - line * high - 0.12 * high,
    )
