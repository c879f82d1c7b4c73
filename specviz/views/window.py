"""The Jacobi window over the last rounds: across the places of the picture, down the rounds, framed what was kept."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.errors import BadInput
from specviz.trace.schema import Trace
from specviz.views.code_map import codes_of, squares
from specviz.views.notes import story
from specviz.views.theme import axis, count, figure, theme_of

_ROUNDS = 10


def window(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Up to ten rounds, the asked one last."""
    step, note = story(trace, index, "window")
    look, book = theme_of(theme), codes_of(trace.run)
    rounds = [at for at in range(max(0, index - _ROUNDS + 1), index + 1) if _has(trace, at)]
    first = trace.steps[rounds[0]].position
    said = count(len(note.wholes("codes")), "place")
    title = f"Step {step.index + 1} · {len(step.path)} of {said} kept, {note.whole('redrawn')} had been drawn again"
    made = figure(
        look, title, "each row is a round; framed places were kept and the window moved on", width=900, height=420
    )
    for line, at in enumerate(rounds):
        one, told = story(trace, at, "window")
        codes = told.wholes("codes")
        cells = [(line, one.position - first + place) for place in range(len(codes))]
        kept = len(one.path)
        for part, frame in ((slice(0, kept), look.accepted), (slice(kept, None), look.line)):
            named = [f"#{code}" for code in codes[part]]
            squares(made, look, cells[part], [book.colour(code) for code in codes[part]], 20, told=named, line=frame)
    made.update_xaxes(axis(look, "place of the picture, from the window's oldest on", grid=False))
    ticks = {"tickvals": list(range(len(rounds))), "ticktext": [f"step {at + 1}" for at in rounds]}
    made.update_yaxes(axis(look, "", grid=False, autorange="reversed", **ticks))
    return made


def _has(trace: Trace, index: int) -> bool:
    try:
        story(trace, index, "window")
    except BadInput:
        return False
    return True
