"""A drafter that fills several levels of the tree a forward: its tree in bands, and who sees whom inside a block."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.trace.schema import ACCEPTED, PRUNED, RELAXED, Step, Trace
from specviz.views import dots
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, axis, count, figure, safe, theme_of, visible

_WIDTH, _HEIGHT = 1000, 460
_MOST = 32


class _Block(NamedTuple):
    """What one drafter forward gave: nodes on the levels ``low`` to ``high``."""

    nodes: list[int]
    low: int
    high: int


def blocks(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Left the tree, a band a forward; right the mask: a row looks at its whole block and at everything before it."""
    step, note = story(trace, index, "blocks")
    look = theme_of(theme)
    found = [_read(row, len(step.nodes)) for row in note.rows("blocks", _MOST)]
    width = note.whole("width")
    made = figure(look, *_headline(step, found, width), width=_WIDTH, height=_HEIGHT, key=True)
    levels = max((block.high for block in found), default=1)
    _tree(made, look, step)
    shapes = [*_bands(look, found), *_mask(look, found, levels)]
    made.update_layout(shapes=shapes, annotations=_names(look, step, found))
    across = {"domain": [0, 0.62], "tickvals": list(range(levels + 1)), "range": [-0.4, levels + 0.5]}
    square = {"domain": [0.7, 1], "range": [0.5, levels + 0.5], "anchor": "y2", "dtick": max(1, levels // 12)}
    made.update_layout(
        xaxis=axis(look, "level", grid=False, **across),
        yaxis={"visible": False, "range": [-1.1, 0.12]},
        xaxis2=axis(look, "may look at level", grid=False, **square),
        yaxis2=axis(look, "level", grid=False, range=[levels + 0.5, 0.5], anchor="x2", dtick=max(1, levels // 12)),
    )
    return made


def _read(row: Story, nodes: int) -> _Block:
    depths = row.wholes("depths", 600)
    if len(depths) != 2 or not 1 <= depths[0] <= depths[1]:
        raise row.wrong("depths", "two levels, the first not deeper than the second")
    return _Block(row.wholes("nodes", nodes), depths[0], min(depths[1], depths[0] + _MOST))


def _headline(step: Step, found: list[_Block], width: int) -> tuple[str, str]:
    name = f"Step {step.index + 1}"
    if not found:
        return f"{name} · nothing was drafted", "there was no forward of the drafter"
    drafted = [step.nodes[node] for block in found for node in block.nodes]
    sent = sum(node.status != PRUNED for node in drafted)
    of = "" if sent == len(drafted) else f", {sent} of them sent"
    title = f"{name} · {count(len(drafted), 'token')} from {count(len(found), 'drafter forward')}{of}"
    title += f", {len(step.path)} accepted"
    said = f"every forward fills {count(width, 'level')} at once; inside its block a position sees later ones too"
    return title, said


def _tree(made: go.Figure, look: Theme, step: Step) -> None:
    """All nodes as dots, the accepted ones large and joined by a thick line."""
    shown = range(min(len(step.nodes), dots.MOST))
    parents = [step.nodes[node].parent for node in shown]
    where = dots.spots(parents)
    kept = [node for node in shown if step.nodes[node].status in (ACCEPTED, RELAXED)]
    cut = [node for node in shown if step.nodes[node].status == PRUNED]
    rest = [node for node in shown if node not in kept and node not in cut]
    thin = {"color": look.line, "width": 1}
    made.add_scatter(**dots.lines(parents, where, rest), mode="lines", line=thin, hoverinfo="skip", showlegend=False)
    hollow = {"symbol": "circle-open", "size": 7, "color": look.quiet, "line": {"width": 1.4}}
    thick = {"color": look.accepted, "width": 4}
    solid = {"symbol": "circle", "size": 12, "color": look.accepted}
    faint = {"symbol": "diamond-open", "size": 6, "color": look.quiet, "line": {"width": 1}}
    for name, nodes, marker in (("pruned", cut, faint), ("drafted", rest, hollow), ("accepted", kept, solid)):
        if not nodes:
            continue
        if name == "accepted":
            path = dots.lines(parents, where, kept)
            made.add_scatter(**path, mode="lines", line=thick, hoverinfo="skip", showlegend=False)
        hover = [safe(visible(step.nodes[node].text, 24)) for node in nodes]
        made.add_scatter(
            **dots.marks(where, nodes), mode="markers", marker=marker, name=name, hovertext=hover, hoverinfo="text"
        )


def _bands(look: Theme, found: list[_Block]) -> list[dict[str, object]]:
    plain = {"type": "rect", "y0": -1.07, "y1": 0.1, "layer": "below", "fillcolor": look.tints["relaxed"]}
    outline = {"color": look.draft, "width": 1.2}
    return [{**plain, "x0": block.low - 0.32, "x1": block.high + 0.32, "line": outline} for block in found]


def _mask(look: Theme, found: list[_Block], levels: int) -> list[dict[str, object]]:
    """The squares of the mask, one path for each of: own block, before, not seen."""
    kinds = {"own": "", "before": "", "unseen": ""}
    block_of = {level: at for at, block in enumerate(found) for level in range(block.low, block.high + 1)}
    for row in range(1, min(levels, _MOST) + 1):
        for column in range(1, min(levels, _MOST) + 1):
            mine, its = block_of.get(row, -1), block_of.get(column, -1)
            kind = "own" if its == mine else "before" if its < mine else "unseen"
            left, top, right, low = column - 0.46, row - 0.46, column + 0.46, row + 0.46
            kinds[kind] += f"M{left:g},{top:g}H{right:g}V{low:g}H{left:g}Z"
    fills = {"own": look.draft, "before": look.plain, "unseen": "rgba(0,0,0,0)"}
    line = {"own": "solid", "before": "solid", "unseen": "1.5px,2.5px"}
    return [
        {
            "type": "path", "path": path, "xref": "x2", "yref": "y2", "fillcolor": fills[kind], "layer": "below",
            "line": {"color": look.quiet, "width": 1, "dash": line[kind]},
        }
        for kind, path in kinds.items() if path
    ]  # fmt: skip


def _names(look: Theme, step: Step, found: list[_Block]) -> list[dict[str, object]]:
    plain = {"showarrow": False, "xref": "x", "yref": "y", "y": 0.1, "yanchor": "bottom"}
    made: list[dict[str, object]] = []
    for place, block in enumerate(found, start=1):
        kept = sum(node in step.path for node in block.nodes)
        said = f"<b>forward {place}</b>: {len(block.nodes)}, {kept} kept"
        font = {"size": 12, "color": look.ink}
        made.append({**plain, "x": (block.low + block.high) / 2, "text": said, "font": font})
    key = "orange: own block, both ways · blue: before · dotted: hidden"
    corner = {"xref": "paper", "yref": "paper", "x": 1, "y": 1.02, "xanchor": "right", "yanchor": "bottom"}
    made.append({"showarrow": False, **corner, "text": key, "font": {"size": 12, "color": look.mute}})
    return made
