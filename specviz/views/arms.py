"""Several drafters and who was chosen: the river of their chances, what those that did not draft would have got, who waits."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from specviz.trace.schema import Trace
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, axis, count, figure, number, safe, theme_of, visible

_WIDTH, _HEIGHT = 1000, 460
_MOST_ARMS = 12
_MOST_STEPS = 160
_MOST_TOKENS = 16
_LOSSES = ("length", "acceptance")


@dataclass(frozen=True)
class _Told:
    """One step's note. ``ghosts`` and ``expected`` are by arm, empty where nobody judged in hindsight."""

    names: list[str]
    chances: list[float]
    drafted: int
    ghosts: list[list[float]]
    expected: list[float]
    waiting: list[tuple[int, int]]
    tokens: list[str]
    ahead: int
    informed: bool


def arms(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Left the chances by step, stacked; right a row an arm: its chain from this root, token by token, as large as its chance
    of acceptance, filled for the arm that drafted; below the delay queue."""
    step, note = story(trace, index, "arms")
    told, look = _read(note), theme_of(theme)
    made = figure(look, *_headline(step.index, len(step.path), told), width=_WIDTH, height=_HEIGHT, key=True)
    _river(made, look, trace, index, told)
    _ghosts(made, look, told, len(step.path))
    _queue(made, look, told)
    rows = list(range(len(told.names)))
    labels = [f"<b>{safe(name)}</b>" if arm == told.drafted else safe(name) for arm, name in enumerate(told.names)]
    shown = told.tokens[:_MOST_TOKENS]
    made.update_layout(
        xaxis=axis(look, "step", domain=[0, 0.46], grid=False),
        yaxis=axis(look, "chance of drafting", range=[0, 1], tickvals=[0, 0.5, 1]),
        xaxis2=axis(look, "", domain=[0.6, 0.97], anchor="y2", grid=False, range=[-0.6, max(len(shown), told.ahead) - 0.4],
                    tickvals=list(range(len(shown))), ticktext=[safe(visible(text, 8)) for text in shown], side="top"),
        yaxis2=axis(look, "", domain=[0.42, 0.92], anchor="x2", grid=False, tickvals=rows, ticktext=labels,
                    range=[len(rows) - 0.5, -0.5]),
        xaxis3=axis(look, "start of a chain, by place in the text", domain=[0.6, 0.97], anchor="y3", grid=False),
        yaxis3=axis(look, "known", domain=[0, 0.22], anchor="x3", range=[0, max(1, told.ahead)], dtick=max(1, told.ahead)),
    )  # fmt: skip
    return made


def _read(note: Story) -> _Told:
    names = note.names("names", _MOST_ARMS)
    arms_ = len(names)
    drafted = note.whole("drafted")
    if not names or drafted >= arms_:
        raise note.wrong("drafted", "one of the arms")
    has = "ghosts" in note.data and bool(note.data["ghosts"])
    ghosts = [
        [min(1.0, max(0.0, one)) for one in row[:_MOST_TOKENS]]
        for row in (note.lists("ghosts", _MOST_ARMS) if has else ())
    ]
    if has and len(ghosts) != arms_:
        raise note.wrong("ghosts", f"a list of {arms_} lists")
    waiting = [(row.whole("place"), row.whole("known")) for row in note.rows("waiting", 32)] if has else []
    return _Told(
        names, note.numbers("chances", arms_), drafted, ghosts, note.numbers("expected", arms_) if has else [], waiting,
        note.texts() if has else [], max(1, note.whole("ahead", 1)), note.data.get("informed") is True,
    )  # fmt: skip


def _headline(index: int, accepted: int, told: _Told) -> tuple[str, str]:
    name = told.names[told.drafted]
    title = f"Step {index + 1} · {safe(name)} drafted with chance {number(told.chances[told.drafted])}, {accepted} accepted"
    if not told.expected:
        return title, "nobody asks what the other arms would have got: this chooser learns from its own rounds alone"
    best = max(range(len(told.names)), key=told.expected.__getitem__)
    said = f"{safe(told.names[best])} would have emitted most along this text: {number(told.expected[best])} tokens"
    said += "" if told.informed else "; this chooser does not get to know that"
    return title, f"{said}; {count(len(told.waiting), 'start')} of a chain not judged yet"


def _colours(look: Theme) -> list[tuple[str, str]]:
    """A colour and a dash for each arm, so that lines differ without colour too."""
    hues = [look.accepted, look.draft, look.bonus, look.resampled, look.plain, look.rejected]
    return [(hues[arm % len(hues)], ("solid", "dash", "dot", "dashdot")[arm % 4]) for arm in range(_MOST_ARMS)]


def _river(made: go.Figure, look: Theme, trace: Trace, index: int, told: _Told) -> None:
    first = max(0, index + 1 - _MOST_STEPS)
    rows: list[tuple[int, list[float]]] = []
    for step in trace.steps[first:]:
        for note in step.notes:
            if note.type == "arms" and len(note.data.get("chances", ())) == len(told.names):
                found = Story(note.data, f"note arms of step {step.index + 1}").numbers("chances", len(told.names))
                rows.append((step.index + 1, found))
        if len(rows) == _MOST_STEPS:
            break
    for arm, name in enumerate(told.names):
        colour, dash = _colours(look)[arm]
        made.add_scatter(
            x=[at for at, _ in rows], y=[round(chances[arm], 3) for _, chances in rows], mode="lines", name=safe(name),
            stackgroup="river", line={"width": 1.2, "color": colour, "dash": dash, "shape": "hv"}, hoverinfo="x+y+name",
        )  # fmt: skip
    made.add_shape(type="line", x0=index + 1, x1=index + 1, y0=0, y1=1, line={"color": look.ink, "width": 2})


def _ghosts(made: go.Figure, look: Theme, told: _Told, accepted: int) -> None:
    for own in (False, True):
        marks = [
            (place, arm, shared)
            for arm, row in enumerate(told.ghosts)
            for place, shared in enumerate(row)
            if (arm == told.drafted) == own and shared >= 0.02
        ]
        fill = look.accepted if own else "rgba(0,0,0,0)"
        made.add_scatter(
            x=[place for place, _, _ in marks], y=[arm for _, arm, _ in marks], xaxis="x2", yaxis="y2", mode="markers",
            name="drafted" if own else "would have drafted",
            marker={"size": [4 + 13 * shared**0.5 for _, _, shared in marks], "color": fill,
                    "line": {"width": 1.6, "color": look.accepted if own else look.quiet}},
            hovertext=[f"{safe(told.names[arm])}: accepted with chance {number(shared)}" for _, arm, shared in marks],
            hoverinfo="text",
        )  # fmt: skip
    for arm, length in enumerate(told.expected):
        made.add_annotation(
            x=1, xref="paper", y=arm, yref="y2", text=number(length), showarrow=False, xanchor="right",
            font={"size": 12, "color": look.ink if arm == told.drafted else look.mute},
        )  # fmt: skip


def _queue(made: go.Figure, look: Theme, told: _Told) -> None:
    if told.waiting:
        made.add_bar(
            x=[place for place, _ in told.waiting], y=[known for _, known in told.waiting], xaxis="x3", yaxis="y3",
            marker={"color": look.plain, "line": {"width": 1, "color": look.quiet}}, showlegend=False,
            hovertext=[f"a chain from place {place}: {known} of {told.ahead} laws known" for place, known in told.waiting],
            hoverinfo="text",
        )  # fmt: skip
    made.add_annotation(
        x=0.6, xref="paper", y=0.25, yref="paper", xanchor="left", yanchor="bottom", showarrow=False,
        text="delay queue: what later tokens still have to tell", font={"size": 12, "color": look.mute},
    )  # fmt: skip
