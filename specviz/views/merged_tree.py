"""One tree of several sources: what the drafter proposed, what was looked up, where both agreed, and what was kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.trace.schema import ACCEPTED, PRUNED, RELAXED, Step, Trace
from specviz.views import dots
from specviz.views.notes import Story, story
from specviz.views.theme import MONO, Theme, axis, count, figure, number, safe, theme_of, visible

_WIDTH, _HEIGHT = 1000, 480
SOURCES = ("drafter", "context", "outputs")


class _Kind(NamedTuple):
    """How nodes of one source look."""

    name: str
    symbol: str
    size: float
    color: str


def merged_tree(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """The tree level by level, a shape and a colour for each source; a thick line is the accepted path."""
    step, note = story(trace, index, "merged")
    look = theme_of(theme)
    shown = range(min(len(step.nodes), dots.MOST))
    sources = _sources(note, len(step.nodes))
    values = note.numbers("value", len(step.nodes))
    parents = [step.nodes[node].parent for node in shown]
    where = dots.spots(parents)
    made = figure(look, *_headline(step, note, sources), width=_WIDTH, height=_HEIGHT, key=True)
    _lines(made, look, step, parents, where)
    for kind, nodes in _grouped(look, step, sources, shown).items():
        hover = [_hover(step, node, sources[node], values[node]) for node in nodes]
        outline = {"width": 1.6 if "open" in kind.symbol else 0.8, "color": kind.color}
        marker = {"symbol": kind.symbol, "size": kind.size, "color": kind.color, "line": outline}
        made.add_scatter(
            **dots.marks(where, nodes), mode="markers", marker=marker, name=kind.name, hovertext=hover, hoverinfo="text"
        )
    _names(made, look, step, where)
    deepest = max(1, max(step.depths))
    across = {"range": [-0.4, deepest + 0.8], "dtick": max(1, deepest // 16)}
    made.update_layout(xaxis=axis(look, "level", grid=False, **across), yaxis={"visible": False, "range": [-1.08, 0.1]})
    return made


def _sources(note: Story, nodes: int) -> list[tuple[str, ...]]:
    """By node the sources that proposed it, none for the root."""
    found = note.data.get("sources")
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != nodes:
        raise note.wrong("sources", f"a list of {nodes} words")
    if any(not isinstance(word, str) for word in found):
        raise note.wrong("sources", f"a list of {nodes} words")
    split = [tuple(word.split("+")) for word in found]
    if any(word not in SOURCES for words in split[1:] for word in words):
        raise note.wrong("sources", f"a list of {', '.join(SOURCES)}, joined by +")
    return [(), *split[1:]]


def _headline(step: Step, note: Story, sources: Sequence[tuple[str, ...]]) -> tuple[str, str]:
    name = f"Step {step.index + 1}"
    sent = [sources[node] for node, one in enumerate(step.nodes) if node and one.status != PRUNED]
    if not sent:
        return f"{name} · nothing was drafted", "neither the drafter nor the memories had anything that paid"
    both = sum("drafter" in one and len(one) > 1 for one in sent)
    alone = sum(one == ("drafter",) for one in sent)
    found = len(sent) - both - alone
    title = f"{name} · {count(len(sent), 'node')}: {alone} drafted, {found} looked up, {both} both; {len(step.path)} accepted"
    said = (
        f"the best of {count(note.whole('considered'), 'candidate')} by the chance of their path; "
        f"expected {number(note.number('expected'))} tokens a pass, got {len(step.emitted)}"
    )
    return title, said


def _kinds(look: Theme) -> dict[str, _Kind]:
    return {
        "drafter": _Kind("drafter", "circle", 11, look.draft),
        "context": _Kind("looked up in this text", "square", 10, look.verify),
        "outputs": _Kind("looked up in earlier outputs", "diamond", 11, look.resampled),
        "both": _Kind("drafter and memory agree", "star", 15, look.commit),
        "pruned": _Kind("did not pay", "circle-open", 6, look.quiet),
    }


def _grouped(
    look: Theme, step: Step, sources: Sequence[tuple[str, ...]], shown: Sequence[int]
) -> dict[_Kind, list[int]]:
    kinds, found = _kinds(look), {}
    for key, kind in kinds.items():
        nodes = [node for node in shown if node and _key(step, node, sources[node]) == key]
        if nodes:
            found[kind] = nodes
    return found


def _key(step: Step, node: int, sources: tuple[str, ...]) -> str:
    if step.nodes[node].status == PRUNED:
        return "pruned"
    return "both" if "drafter" in sources and len(sources) > 1 else sources[0]


def _lines(made: go.Figure, look: Theme, step: Step, parents: Sequence[int], where: dots.Spots) -> None:
    kept = [node for node in range(len(parents)) if step.nodes[node].status in (ACCEPTED, RELAXED)]
    sent = [node for node in range(len(parents)) if step.nodes[node].status != PRUNED and node not in kept]
    left = [node for node in range(len(parents)) if step.nodes[node].status == PRUNED]
    for nodes, line in (
        (left, {"color": look.line, "width": 1, "dash": "1px,3px"}),
        (sent, {"color": look.line, "width": 1.4}),
        (kept, {"color": look.accepted, "width": 5}),
    ):
        if nodes:
            made.add_scatter(
                **dots.lines(parents, where, nodes), mode="lines", line=line, hoverinfo="skip", showlegend=False
            )


def _hover(step: Step, node: int, sources: tuple[str, ...], value: float) -> str:
    one = step.nodes[node]
    said = {"drafter": "the drafter", "context": "this text", "outputs": "earlier outputs"}
    return (
        f"<b>{safe(visible(one.text, 24))}</b><br>from {' and '.join(said[word] for word in sources)}<br>"
        f"chance {number(one.q, 3)}, of its path {number(value, 3)}<br>{one.status}"
    )


def _names(made: go.Figure, look: Theme, step: Step, where: dots.Spots) -> None:
    """The root and the accepted path carry their words."""
    nodes = [node for node in (0, *step.path) if node < len(where.x)]
    made.add_scatter(
        **dots.marks(where, nodes), mode="markers+text", showlegend=False, hoverinfo="skip", cliponaxis=False,
        text=[f"<b>{safe(visible(step.nodes[node].text, 12))}</b>" for node in nodes], textposition="top right",
        textfont={"family": MONO, "size": 12, "color": look.ink},
        marker={"size": 9, "symbol": "square", "color": [look.ink, *(["rgba(0,0,0,0)"] * (len(nodes) - 1))]},
    )  # fmt: skip
