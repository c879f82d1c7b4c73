"""Where the target's layers look least scattered, and which patches each drafted word was guessed from."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.trace.schema import Step, Trace
from specviz.views.notes import Story, story
from specviz.views.picture import Seen, frame, patches, placed, places_of
from specviz.views.theme import Theme, axis, figure, percent, safe, theme_of, visible
from specviz.views.visual_tokens import seen

_SHADES = 6
_LAYERS, _PLACES, _ARCS = 128, 1500, 40


def entropy_map(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Left a cell for each layer and place, darker where attention is scattered, the least scattered outlined; right the
    picture with lines to the patches that the rows on the accepted path looked at most."""
    step, note = story(trace, index, "entropy_map")
    look, found = theme_of(theme), seen(trace)
    _, first = story(trace, 0, "entropy_map") if "entropy" not in note.data else (step, note)
    looks = note.rows("looks", _ARCS)
    told = _told(step, looks)
    title = f"Step {step.index + 1} · where target and drafter look"
    made = figure(look, title, told, width=1000, height=430)
    layers = _heat(made, look, first)
    made.update_layout(
        xaxis=axis(look, "place in the prompt", grid=False, domain=[0, 0.6 if found else 1]),
        yaxis=axis(look, "layer", grid=False, range=[-0.6, layers - 0.4], dtick=max(1, layers // 8)),
    )
    if found is not None:
        kept = _kept(step)
        made.update_layout(**frame(found, "2", (0.66, 1.0)))
        made.update_layout(images=[placed(found, "2")])
        made.update_layout(shapes=[*made.layout.shapes, *patches(look, found, "2", kept or set(found.boxes))])
        _arcs(made, look, found, _followed(step, looks))
    return made


def _heat(made: go.Figure, look: Theme, note: Story) -> int:
    """One path a shade, one for the chosen cells; the number of layers."""
    rows = [Story({"row": row}, note.where).finite("row")[:_PLACES] for row in note.data.get("entropy", ())][:_LAYERS]
    most = max((value for row in rows for value in row), default=0.0) or 1.0
    shades = [""] * _SHADES
    for layer, row in enumerate(rows):
        start = 0
        for place in range(1, len(row) + 1):  # neighbours of one shade are one rectangle
            shade = _shade(row[start], most)
            if place == len(row) or _shade(row[place], most) != shade:
                shades[shade] += f"M{start - 0.5},{layer - 0.5}H{place - 0.5}V{layer + 0.5}H{start - 0.5}Z"
                start = place
    shapes = [
        {
            "type": "path", "path": path, "xref": "x", "yref": "y", "fillcolor": look.verify, "line": {"width": 0},
            "opacity": 0.06 + 0.94 * shade / (_SHADES - 1), "layer": "below",
        }
        for shade, path in enumerate(shades) if path
    ]  # fmt: skip
    made.update_layout(shapes=shapes)
    chosen = note.wholes("chosen", _LAYERS)[:_PLACES] if rows else []
    marker = {"symbol": "square-open", "size": 5, "color": look.ink, "line": {"width": 1}}
    made.add_scatter(
        x=list(range(len(chosen))), y=chosen, mode="markers", marker=marker, hoverinfo="skip", showlegend=False
    )
    return max(1, len(rows))


def _shade(value: float, most: float) -> int:
    return min(_SHADES - 1, max(0, int(_SHADES * value / most)))


def _told(step: Step, looks: list[Story]) -> str:
    if not looks:
        return "nothing was drafted in this step"
    share = sum(row.share("picture") for row in looks) / len(looks)
    return (
        f"dark is scattered, outlined the least scattered of the layers asked; looking across, the drafter gave "
        f"{percent(share)} of its look to the picture"
    )


def _kept(step: Step) -> set[int]:
    data = next((note.data for note in step.notes if note.type == "visual_tokens"), None)
    return set() if data is None else set(places_of(Story(data, "note visual_tokens"), "kept"))


def _followed(step: Step, looks: list[Story]) -> list[tuple[str, Story]]:
    """The looks along the accepted path, each with the word that was guessed from it."""
    rows = {tuple(row.tokens()): row for row in looks}
    found, path = [], tuple[int, ...]()
    for node in (*step.path, None):
        if path in rows:
            text = step.nodes[node].text if node is not None else (step.bonus.text if step.bonus else "")
            found.append((text, rows[path]))
        if node is not None:
            path = (*path, step.nodes[node].token)
    return found[:4]


def _arcs(made: go.Figure, look: Theme, found: Seen, followed: list[tuple[str, Story]]) -> None:
    """Lines from a word at the picture's left edge to the patches it was guessed from."""
    wide, high = found.size
    for order, (text, row) in enumerate(followed):
        y = high * (order + 0.5) / max(1, len(followed))
        xs: list[float | None] = []
        ys: list[float | None] = []
        for at in row.rows_of_pairs("at"):
            box = found.boxes.get(int(at[0]))
            if box is not None:
                xs += [0, (box[0] + box[2]) / 2 * wide, None]
                ys += [y, (box[1] + box[3]) / 2 * high, None]
        line = {"color": look.draft, "width": 1.6}
        made.add_scatter(
            x=xs, y=ys, xaxis="x2", yaxis="y2", mode="lines", line=line, hoverinfo="skip", showlegend=False
        )
        made.add_annotation(
            x=0, y=y, xref="x2", yref="y2", text=safe(visible(text, 12)), showarrow=False, xanchor="right", xshift=-4,
            font={"size": 12, "color": look.ink},
        )  # fmt: skip
