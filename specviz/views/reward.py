"""A drafter trained on whole trees: what it grew, what it grew before its training, and the reward of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.trace.schema import PRUNED, Step, Trace
from specviz.views import dots
from specviz.views.notes import Story, node_of, story
from specviz.views.theme import Theme, axis, figure, number, safe, theme_of, visible

_WIDTH, _HEIGHT = 1000, 500
_TREES = (0.3, 1.0)


class _Tree(NamedTuple):
    """A tree, its root first; ``paths`` are the tokens that lead to each node, to tell what two trees share."""

    parents: list[int]
    texts: list[str]
    paths: list[tuple[int, ...]]


def reward(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Filled squares are new, dotted diamonds were given up; the thick line is what the target accepted."""
    step, note = story(trace, index, "reward")
    look = theme_of(theme)
    after, before = _after(step), _before(note)
    lengths = {node_of(step, row): row.number("length") for row in note.rows("branches", dots.MOST)}
    now, was = note.number("reward"), note.maybe_number("before")
    made = figure(look, *_headline(step, now, was, before, lengths), width=_WIDTH, height=_HEIGHT, key=True)
    kept = {after.paths[node] for node in step.path if node < len(after.paths)}
    left = 0.0
    if before is not None:
        _draw(made, look, before, set(after.paths), kept, ("x", "y"), "given up")
        left = 0.53
    hovers = {node: f"<br>expected accepted length {length:.2f}" for node, length in lengths.items()}
    _draw(made, look, after, set(before.paths) if before else None, kept, ("x2", "y2"), "new", hovers)
    _meter(made, look, now, was)
    _axes(made, look, left, before is not None)
    return made


def _after(step: Step) -> _Tree:
    sent = [node for node in step.nodes if node.status != PRUNED][: dots.MOST]
    return _tree([node.parent for node in sent], [node.token for node in sent], [node.text for node in sent])


def _before(note: Story) -> _Tree | None:
    given = note.part("reference")
    if given is None:
        return None
    tokens, texts = given.tokens()[: dots.MOST], given.texts()[: dots.MOST]
    parents = [round(one) for one in given.finite("parents")][: dots.MOST]
    right = len(parents) == len(tokens) > 0 and parents[0] == -1
    if not right or any(not 0 <= parent < node for node, parent in enumerate(parents[1:], start=1)):
        raise given.wrong("parents", "a list with a parent before each node")
    return _tree(parents, tokens, texts)


def _tree(parents: list[int], tokens: Sequence[int], texts: list[str]) -> _Tree:
    paths: list[tuple[int, ...]] = []
    for parent, token in zip(parents, tokens, strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else ())
    return _Tree(parents, texts, paths)


def _headline(
    step: Step, now: float, was: float | None, before: _Tree | None, lengths: dict[int, float]
) -> tuple[str, str]:
    name = f"Step {step.index + 1} · tree reward {number(now)}"
    title = name if was is None else f"{name}, {number(was)} before training on trees"
    best = max(lengths.values(), default=0.0)
    said = f"log Σ exp(L) over all branches; L: tokens of a branch the target can be expected to keep, here at most {best:.2f}"
    return title, said if before is not None else f"{said}; the drafter before its training was not asked"


def _draw(
    made: go.Figure, look: Theme, tree: _Tree, others: set[tuple[int, ...]] | None, kept: set[tuple[int, ...]],
    axes: tuple[str, str], alone: str, more: dict[int, str] | None = None,
) -> None:  # fmt: skip
    """One tree: what both share is quiet, what only this one has is marked, what was accepted is large."""
    where = dots.spots(tree.parents)
    nodes = range(len(tree.parents))
    path = [node for node in nodes if tree.paths[node] in kept]
    own = [node for node in nodes if others is not None and tree.paths[node] not in others and node not in path]
    rest = [node for node in nodes if node not in own and node not in path]
    mark = {
        "new": {"symbol": "square", "size": 9, "color": look.bonus},
        "given up": {"symbol": "diamond-open-dot", "size": 9, "color": look.mute, "line": {"width": 1.2}},
    }[alone]
    quiet = {"symbol": "circle-open", "size": 7, "color": look.quiet, "line": {"width": 1.3}}
    solid = {"symbol": "circle", "size": 12, "color": look.accepted}
    named = (("shared", rest, quiet, look.line, 1), (alone, own, mark, mark["color"], 1.4))
    for name, wanted, marker, color, width in (*named, ("accepted", path, solid, look.accepted, 4)):
        if not wanted:
            continue
        place = {"xaxis": axes[0], "yaxis": axes[1]}
        line = {"color": color, "width": width, "dash": "2px,3px" if name == "given up" else "solid"}
        edges = dots.lines(tree.parents, where, wanted)
        made.add_scatter(**edges, mode="lines", line=line, hoverinfo="skip", showlegend=False, **place)
        hover = [safe(visible(tree.texts[node], 24)) + (more or {}).get(node, "") for node in wanted]
        points = dots.marks(where, wanted)
        first = not any(one.name == name for one in made.data)
        made.add_scatter(
            **points, mode="markers", marker=marker, name=name, legendgroup=name, showlegend=first, hovertext=hover,
            hoverinfo="text", **place,
        )  # fmt: skip


def _meter(made: go.Figure, look: Theme, now: float, was: float | None) -> None:
    """Both rewards on one scale; the one before is hollow."""
    rows = [("now", now, look.bonus)] if was is None else [("before", was, look.paper), ("now", now, look.bonus)]
    made.add_bar(
        orientation="h", x=[round(value, 4) for _, value, _ in rows], y=[name for name, _, _ in rows], xaxis="x3",
        yaxis="y3", text=[number(value) for _, value, _ in rows], textposition="outside", cliponaxis=False,
        textfont={"size": 14, "color": look.ink}, hoverinfo="skip", showlegend=False,
        marker={"color": [color for _, _, color in rows], "line": {"width": 2, "color": look.bonus}},
    )  # fmt: skip
    made.update_layout(
        xaxis3=axis(look, "tree reward", domain=[0, 1], anchor="y3", range=[0, max(0.1, now, was or 0.0) * 1.12]),
        yaxis3=axis(look, "", grid=False, domain=[0, 0.17], anchor="x3", autorange="reversed"),
        bargap=0.35,
    )


def _axes(made: go.Figure, look: Theme, left: float, both: bool) -> None:
    hidden = {"visible": False}
    made.update_layout(
        xaxis={**hidden, "domain": [0, 0.47]}, yaxis={**hidden, "domain": list(_TREES), "range": [-1.06, 0.06]},
        xaxis2={**hidden, "domain": [left, 1], "anchor": "y2"},
        yaxis2={**hidden, "domain": list(_TREES), "anchor": "x2", "range": [-1.06, 0.06]},
    )  # fmt: skip
    names = [("before training on trees", 0.0), ("now", left)] if both else [("its tree", 0.0)]
    for text, x in names:
        made.add_annotation(
            text=f"<b>{text}</b>", x=x, y=1, xref="paper", yref="paper", xanchor="left", yanchor="top",
            showarrow=False, font={"size": 13, "color": look.ink},
        )  # fmt: skip
