"""A draft model's layers collapsing into rows that attend side by side, and how the fuzzy cache compares with the repaired."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.errors import BadTrace
from specviz.trace.schema import Step, Trace
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, axis, count, figure, number, theme_of, wrapped

_WIDTH = 980
_MOST = 64
_TOKENS = 24
_FUZZIEST = 0.5
"""Cosines at and below this are shown in one colour."""


def layers(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Left the stack as it was, then the rows it became; right the cells repaired at the start of this round."""
    step, note = story(trace, index, "layers")
    look = theme_of(theme)
    groups, likeness = _groups(note), _likeness(note)
    title, said = _headline(step, note, groups, likeness)
    high = max(1, sum(map(len, groups)))
    made = figure(
        look, title, wrapped(said, _WIDTH), width=_WIDTH, height=150 + max(150, min(26 * high, 620)), key=True
    )
    _stack(made, look, groups)
    split = 0.52 if likeness else 1.0
    widest = max(map(len, groups), default=1)
    plain = {"showticklabels": False}
    made.update_xaxes(axis(look, "", grid=False, domain=[0, split], range=[-0.1, 2.6 + widest], **plain))
    made.update_yaxes(axis(look, "", grid=False, range=[high + 0.1, -1.1], **plain))
    if likeness:
        _cells(made, look, likeness)
    return made


def _groups(note: Story) -> list[list[int]]:
    whole = note.whole("layers")
    found = note.levels("groups", max(1, whole))[:_MOST]
    if sorted(layer for row in found for layer in row) != list(range(whole)) or not whole or whole > _MOST:
        raise BadTrace(f"{note.where}: its groups are not all of its layers, each once; the trace is damaged.")
    return found


def _likeness(note: Story) -> list[list[float]]:
    """Cosine of fuzzy and exact entries [layer][token], the first tokens of them."""
    rows = note.data.get("likeness") or []
    if not isinstance(rows, list):
        raise note.wrong("likeness", "a list of lists")
    return [Story({"row": row}, note.where).finite("row")[:_TOKENS] for row in rows[:_MOST]]


def _headline(step: Step, note: Story, groups: list[list[int]], likeness: list[list[float]]) -> tuple[str, str]:
    whole, stages = note.whole("layers"), note.whole("stages")
    name, kept = f"Step {step.index + 1}", f"{len(step.path)} of {step.verified} accepted"
    title = f"{name} · {count(whole, 'layer')} attend in {count(stages, 'stage')}, {kept}"
    if note.data.get("calibrated") is not True:
        return (
            title,
            f"no repair: {count(note.whole('fuzzy'), 'cache cell')} a layer stay as fuzzy as they were drafted",
        )
    cells = [one for row in likeness for one in row]
    if not cells:
        return title, "nothing had to be repaired: no drafted token of the last round stayed in the text"
    mean = sum(cells) / len(cells)
    return title, (
        f"one exact pass repaired {count(note.whole('repaired'), 'token')}: their fuzzy entries were {number(mean)} like the "
        f"exact ones (cosine), the worst {number(min(cells))}; feed-forward stays one layer after the other"
    )


def _stack(made: go.Figure, look: Theme, groups: list[list[int]]) -> None:
    """Every layer twice: in the stack at its own height, and in its row."""
    before, after, row = [], [], 0.0
    for group in groups:
        for place, layer in enumerate(group):
            before.append((0.0, float(layer)))
            after.append((2.2 + place, row))
        row += sum(map(len, groups)) / max(1, len(groups))
    shapes = []
    for (x, y), (to, low), alone in zip(before, after, [len(g) == 1 for g in groups for _ in g], strict=True):
        fill = look.tints["accepted"] if alone else look.draft
        for left, top in ((x, y), (to, low)):
            box = {"type": "rect", "x0": left, "x1": left + 0.92, "y0": top + 0.06, "y1": top + 0.94, "fillcolor": fill}
            shapes.append({**box, "line": {"color": look.quiet, "width": 1}})
        line = {"type": "line", "x0": x + 0.92, "y0": y + 0.5, "x1": to, "y1": low + 0.5, "layer": "below"}
        shapes.append({**line, "line": {"color": look.line, "width": 1}})
    made.update_layout(shapes=shapes)
    font = {"size": 12, "color": look.ink}
    words = {"mode": "text", "showlegend": False, "hoverinfo": "skip", "textfont": font, "cliponaxis": False}
    places = [*before, *after]
    names = [str(layer + 1) for group in groups for layer in group]
    made.add_scatter(x=[x + 0.46 for x, _ in places], y=[y + 0.5 for _, y in places], text=[*names, *names], **words)
    made.add_scatter(x=[0.46, 3.0], y=[-0.6, -0.6], text=["<b>one by one</b>", "<b>side by side</b>"], **words)
    for name, fill in (("exact, alone", look.tints["accepted"]), ("attention from one input", look.draft)):
        mark = {"symbol": "square", "size": 12, "color": fill, "line": {"width": 1, "color": look.quiet}}
        made.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=mark)


def _cells(made: go.Figure, look: Theme, likeness: list[list[float]]) -> None:
    """A square a cache cell: the less like the exact one it was, the more orange."""
    x, y, shade, hover = [], [], [], []
    for layer, row in enumerate(likeness):
        for token, value in enumerate(row):
            x.append(token + 1)
            y.append(layer + 1)
            shade.append(round(min(1.0, max(0.0, (1 - value) / (1 - _FUZZIEST))), 3))
            hover.append(f"layer {layer + 1}, token {token + 1}: {value:.3f}")
    scale = [[0, look.tints["accepted"]], [1, look.draft]]
    size = max(6, min(22, 560 / max(1, len(likeness))))
    marker = {"symbol": "square", "size": size, "color": shade, "colorscale": scale, "cmin": 0, "cmax": 1}
    made.add_scatter(
        x=x, y=y, mode="markers", name="cache cell, orange as far as it was off", xaxis="x2", yaxis="y2",
        marker={**marker, "line": {"width": 0.6, "color": look.quiet}}, hovertext=hover, hoverinfo="text",
    )  # fmt: skip
    tokens = max(map(len, likeness))
    made.update_layout(
        xaxis2=axis(
            look,
            "token repaired",
            grid=False,
            domain=[0.62, 1],
            anchor="y2",
            range=[0.3, max(tokens, 4) + 0.7],
            dtick=1,
        ),
        yaxis2=axis(look, "layer", grid=False, anchor="x2", range=[len(likeness) + 0.7, 0.3]),
    )
