"""A state-space target's mask: the tree, what is left of every ancestor at every node, and what keeping states costs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import plotly.graph_objects as go

from specviz.trace.schema import ACCEPTED, RELAXED, Step, Trace
from specviz.views import dots
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, axis, count, figure, percent, safe, theme_of, visible, wrapped

_WIDTH, _HEIGHT = 1000, 480
_MOST = 48
"""A mask of more rows than this says nothing in a figure of this size."""
HEADS = ("slow", "middle", "fast")


class _Mask(NamedTuple):
    """One head's logarithms of decay by node, every node's path, and the layer and head it is."""

    fade: list[float]
    paths: list[list[int]]
    where: str


def ssm_mask(trace: Trace, index: int, theme: str = "light", head: str = "middle") -> go.Figure:
    """Left the tree, in the middle the matrix L with decays, right the memory of both ways. ``head`` is one of HEADS."""
    step, note = story(trace, index, "ssm_mask")
    look = theme_of(theme)
    mask = _read(step, note, head)
    taps = note.whole("taps")
    made = figure(look, *_headline(step, mask, head, note), width=_WIDTH, height=_HEIGHT)
    _tree(made, look, step, mask, taps)
    _matrix(made, look, mask)
    _memory(made, look, note)
    names = ["h₀", *(str(node) for node in range(len(mask.paths)))]
    every = max(1, len(names) // 16)
    ticks = {"tickvals": list(range(-1, len(mask.paths)))[::every], "ticktext": names[::every]}
    made.update_layout(
        xaxis=axis(look, "depth", grid=False, domain=[0, 0.34], dtick=1),
        yaxis={"visible": False, "range": [-1.08, 0.08]},
        xaxis2=axis(
            look, "of what the state, then each node wrote", grid=False, domain=[0.42, 0.78], anchor="y2", **ticks
        ),
        yaxis2=axis(look, "is left at node", grid=False, anchor="x2", autorange="reversed", dtick=every),
        xaxis3={"domain": [0.88, 1], "anchor": "y3", **axis(look, "", grid=False)},
        yaxis3=axis(look, "kB in this pass", anchor="x3", rangemode="tozero"),
        shapes=_path(look, step, mask),
    )
    return made


def _read(step: Step, note: Story, head: str) -> _Mask:
    rows = {one.word("name", HEADS): one for one in note.rows("heads", len(HEADS))}
    if head not in rows:
        raise note.wrong("heads", f"a list that has the head {head}")
    chosen = rows[head]
    fade = chosen.finite("fade")[:_MOST]
    if not fade or len(fade) > len(step.nodes):
        raise chosen.wrong("fade", "a number for each node")
    paths: list[list[int]] = []
    for node, one in enumerate(step.nodes[: len(fade)]):
        paths.append([*(paths[one.parent] if one.parent >= 0 else ()), node])
    return _Mask(fade, paths, f"layer {chosen.whole('layer')}, head {chosen.whole('head')}")


def _row(mask: _Mask, node: int) -> list[float | None]:
    """What is left at ``node``: of the carried state, then of every node; None where it is no ancestor."""
    seen = set(mask.paths[node])
    kept = [_left(mask, node, None)]
    return kept + [_left(mask, node, one) if one in seen else None for one in range(len(mask.paths))]


def _left(mask: _Mask, node: int, since: int | None) -> float:
    return round(math.exp(min(0.0, mask.fade[node] - (0.0 if since is None else mask.fade[since]))), 3)


def _matrix(made: go.Figure, look: Theme, mask: _Mask) -> None:
    """A square for every node and ancestor, as full as what is left; the carried state's column in another colour."""
    size = max(4, min(20, 300 // (len(mask.paths) + 1)))
    for name, wanted, colour in (("carried state", -1, look.bonus), ("ancestors", 0, look.accepted)):
        cells = [
            (column - 1, node, value)
            for node in range(len(mask.paths))
            for column, value in enumerate(_row(mask, node))
            if value is not None and (column == 0) == (wanted < 0)
        ]
        shown = [round(0.08 + 0.92 * value, 3) for _, _, value in cells]
        made.add_scatter(
            x=[column for column, _, _ in cells], y=[node for _, node, _ in cells], name=name, mode="markers",
            marker={"symbol": "square", "size": size, "color": colour, "opacity": shown, "line": {"width": 0}},
            customdata=[value for _, _, value in cells], xaxis="x2", yaxis="y2", showlegend=False,
            hovertext=[f"node {node} keeps {value:.2f}" for _, node, value in cells], hoverinfo="text",
        )  # fmt: skip


def _headline(step: Step, mask: _Mask, head: str, note: Story) -> tuple[str, str]:
    states, replay = note.whole("per_node_bytes"), max(1, note.whole("replay_bytes"))
    title = f"Step {step.index + 1} · a tree of {count(len(mask.paths), 'node')} in one pass, {len(step.path)} accepted"
    said = (
        f"The {head} head shown ({mask.where}) keeps {percent(_left(mask, len(mask.paths) - 1, None))} of the carried state "
        f"at the last node. A state for each node would take {states / replay:.0f} times what the replay takes."
    )
    return title, wrapped(said, _WIDTH)


def _tree(made: go.Figure, look: Theme, step: Step, mask: _Mask, taps: int) -> None:
    shown = range(len(mask.paths))
    parents = [step.nodes[node].parent for node in shown]
    where = dots.spots(parents)
    kept = [node for node in shown if step.nodes[node].status in (ACCEPTED, RELAXED)]
    rest = [node for node in shown if node not in kept]
    thin, thick = {"color": look.line, "width": 1}, {"color": look.accepted, "width": 4}
    for nodes, line, marker in (
        (rest, thin, {"symbol": "circle-open", "size": 8, "color": look.quiet, "line": {"width": 1.4}}),
        (kept, thick, {"symbol": "circle", "size": 12, "color": look.accepted}),
    ):
        plain = {"hoverinfo": "skip", "showlegend": False}
        made.add_scatter(**dots.lines(parents, where, nodes), mode="lines", line=line, **plain)
        hover = [_told(step, mask, node, taps) for node in nodes]
        made.add_scatter(
            **dots.marks(where, nodes),
            mode="markers",
            marker=marker,
            hovertext=hover,
            hoverinfo="text",
            showlegend=False,
        )


def _told(step: Step, mask: _Mask, node: int, taps: int) -> str:
    """A node's decay path and its convolution window, in words."""
    path = mask.paths[node]
    way = " → ".join(f"{one}: {percent(_left(mask, node, one))}" for one in path[-6:])
    own = path[-taps:]
    before = f" and {taps - len(own)} carried" if len(own) < taps else ""
    name = safe(visible(step.nodes[node].text, 24))
    return f"<b>{name}</b>, node {node}<br>decay path {way}<br>convolution reads {', '.join(map(str, own))}{before}"


def _memory(made: go.Figure, look: Theme, note: Story) -> None:
    sizes = [note.whole("per_node_bytes") / 1e3, note.whole("replay_bytes") / 1e3]
    made.add_bar(
        x=["state<br>a node", "replay"], y=[round(one, 2) for one in sizes], marker={"color": [look.quiet, look.bonus]},
        text=[f"{one:.0f}" for one in sizes], textposition="outside", cliponaxis=False, showlegend=False,
        hoverinfo="skip", xaxis="x3", yaxis="y3", textfont={"size": 12, "color": look.ink},
    )  # fmt: skip


def _path(look: Theme, step: Step, mask: _Mask) -> list[dict[str, Any]]:
    """Frames around the rows of accepted nodes: the only ones that are replayed."""
    line = {"color": look.ink, "width": 1.4}
    wide = len(mask.paths) - 0.5
    rows = [node for node in step.path if node < len(mask.paths)]
    plain = {"type": "rect", "xref": "x2", "yref": "y2", "x0": -1.5, "x1": wide, "line": line}
    return [{**plain, "y0": node - 0.5, "y1": node + 0.5} for node in rows]
