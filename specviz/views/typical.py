"""Typical acceptance: the probability of each guess against a bar that sinks where the target is unsure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.trace.schema import ACCEPTED, RELAXED, Step, Trace
from specviz.views.notes import node_of, story
from specviz.views.theme import MONO, Theme, axis, count, figure, safe, theme_of, visible

_WIDTH, _HEIGHT = 860, 460
_MOST = 160
_LEAST = 1e-7


class _Guess(NamedTuple):
    """A judged token with the numbers of its place."""

    text: str
    p: float
    bar: float
    entropy: float
    status: str

    @property
    def kept(self) -> bool:
        return self.status in (ACCEPTED, RELAXED)

    @property
    def kind(self) -> str:
        if self.kept:
            return "kept"
        return "typical, but off the path" if self.p > self.bar else "not typical"


def typical(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Across: entropy of the target's law; up: p of the guess, logarithmic. Above the line a guess may stay."""
    step, note = story(trace, index, "typical")
    look = theme_of(theme)
    guesses = []
    for row in note.rows("positions", _MOST):
        node = step.nodes[node_of(step, row)]
        guesses.append(
            _Guess(
                node.text,
                row.share("p"),
                row.share("threshold"),
                min(60.0, max(0.0, row.number("entropy"))),
                node.status,
            )
        )
    made = figure(look, *_headline(step, guesses), width=_WIDTH, height=_HEIGHT, key=True)
    if guesses:
        _bar(made, look, guesses)
        _points(made, look, guesses)
    lowest = math.log10(max(_LEAST, min([0.05, *(min(one.p, one.bar) for one in guesses)]))) - 0.2
    widest = max([1.0, *(one.entropy for one in guesses)]) * 1.06
    powers = list(range(0, math.floor(lowest), -1))
    scale = {"tickvals": powers, "ticktext": [f"{10**power:g}" for power in powers], "range": [lowest, 0.12]}
    made.update_xaxes(axis(look, "entropy of the target's law, nats", grid=False, range=[-0.02 * widest, widest]))
    made.update_yaxes(axis(look, "p, the target's probability", **scale))
    return made


def _headline(step: Step, guesses: list[_Guess]) -> tuple[str, str]:
    title = f"Step {step.index + 1} · {count(len(guesses), 'guess' if len(guesses) == 1 else 'guesse')} judged"
    title += f", {sum(one.kept for one in guesses)} kept"
    return title, "a guess may stay where p is above min(ε, δ·exp(−H)): the less sure the target, the lower the bar"


def _curve(guesses: list[_Guess]) -> Callable[[float], float]:
    """The bar at any entropy: its flat part is ε, and one point of the falling part gives δ."""
    flat = max(one.bar for one in guesses)
    delta = next((one.bar * math.exp(one.entropy) for one in guesses if one.bar < flat * 0.999), None)
    return lambda entropy: flat if delta is None else min(flat, delta * math.exp(-entropy))


def _bar(made: go.Figure, look: Theme, guesses: list[_Guess]) -> None:
    """The bar, and the area above it."""
    bar = _curve(guesses)
    widest = max([1.0, *(one.entropy for one in guesses)]) * 1.06
    across = [round(widest * place / 60, 3) for place in range(61)]
    high = [round(math.log10(max(_LEAST, bar(entropy))), 3) for entropy in across]
    made.add_scatter(
        x=across, y=high, mode="lines", name="the bar", hoverinfo="skip",
        line={"color": look.ink, "width": 1.8, "dash": "6px,4px"},
    )  # fmt: skip
    made.add_scatter(
        x=[across[0], across[-1]], y=[0.12, 0.12], mode="lines", line={"width": 0}, fill="tonexty",
        fillcolor=look.tints["accepted"], hoverinfo="skip", showlegend=False,
    )  # fmt: skip


def _points(made: go.Figure, look: Theme, guesses: list[_Guess]) -> None:
    kinds = {
        "not typical": {
            "symbol": "x-thin",
            "size": 9,
            "color": look.rejected,
            "line": {"width": 2, "color": look.rejected},
        },
        "typical, but off the path": {
            "symbol": "circle-open",
            "size": 10,
            "color": look.accepted,
            "line": {"width": 2},
        },
        "kept": {"symbol": "circle", "size": 12, "color": look.accepted},
    }
    for kind, marker in kinds.items():
        here = [one for one in guesses if one.kind == kind]
        if not here:
            continue
        named = kind == "kept"
        made.add_scatter(
            x=[round(one.entropy, 3) for one in here],
            y=[round(math.log10(max(_LEAST, one.p)), 3) for one in here],
            mode="markers+text" if named else "markers", marker=marker, name=kind, cliponaxis=False,
            text=[safe(visible(one.text, 14)) if named else "" for one in here], textposition="middle right",
            textfont={"family": MONO, "size": 13, "color": look.ink}, hoverinfo="text",
            hovertext=[
                f"{safe(visible(one.text, 24))}<br>p {one.p:.3g}, bar {one.bar:.3g}, entropy {one.entropy:.2f}"
                for one in here
            ],
        )  # fmt: skip
