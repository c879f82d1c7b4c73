"""Draft tree of one step, in columns by depth: every token with q, p and the verdict, and the bonus token."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from specviz.figures.theme import JUDGED, SMALL, TEXT, cells, count, escape, figure, number, show_whitespace, theme_of, wrapped
from specviz.palette import LABELS, LEGEND, LOOKS, MONO, Theme
from specviz.trace.export import graph
from specviz.trace.schema import MAX_PRUNED, PRUNED, Step

if TYPE_CHECKING:
    from networkx import DiGraph

ROOMY = 40
"""Largest tree, in nodes, that is drawn with wide rows and with q and p below judged nodes."""
MANY = 40
"""Number of pruned nodes above which all pruned nodes are folded into counts, to keep the verified tree visible."""
_LETTERS = 18
_MARGIN = {"l": 28, "r": 28, "t": 84, "b": 64}


def draft_tree(step: Step, theme: str = "light", *, most: int = 200) -> go.Figure:
    """Draw the tree of one step. Unjudged nodes are folded into counts if the tree exceeds ``most`` nodes.

    Pruned nodes are folded if there are more than ``MANY``.
    """
    colours, tree = theme_of(theme), graph(step)
    _fold(tree, most)
    width, height = _place(tree)
    title, subtitle = _words(step, sum(hidden for _, hidden in tree.nodes.data("hidden", 0)))
    subtitle = wrapped(subtitle, width)
    size: dict[str, Any] = {"width": width + _MARGIN["l"] + _MARGIN["r"], "height": height + _MARGIN["t"] + _MARGIN["b"]}
    fig = figure(colours, title, subtitle, **size, margin={**_MARGIN, "t": _MARGIN["t"] + 16 * subtitle.count("<br>")}, key=True)
    fig.update_layout(legend={"y": 0, "yanchor": "top", "itemwidth": 34}, hoverdistance=60)
    fig.update_xaxes(visible=False, range=[-10, width])
    fig.update_yaxes(visible=False, range=[height, 0])
    statuses = {status for _, status in tree.nodes.data("status")}
    for status in sorted(statuses, key=lambda status: LOOKS[status].width):
        _edges(fig, tree, colours, status)
    for status in [status for status in LOOKS if status in statuses]:
        _nodes(fig, tree, colours, status)
    return fig


def _words(step: Step, folded: int) -> tuple[str, str]:
    """Return title and subtitle. ``folded``: number of recorded nodes that are not drawn."""
    carried = sum(node.status == PRUNED for node in step.nodes)
    drafted = max(step.verified, len(step.nodes) - 1 + step.pruned - carried)  # a recording may lack the rejected nodes
    folded += step.pruned - carried
    tokens = count(drafted, "drafted token")
    if step.considered is None and carried >= MAX_PRUNED:
        tokens = f"{drafted} or more drafted tokens"
    within = "" if step.accepted == len(step.path) else f", {step.accepted} of them before the end"
    said = f"{tokens}, {len(step.path)} accepted{within}" if drafted else "the drafter proposed nothing"
    rule = f"rule: {step.rule.replace('_', ' ')} ·" if drafted else "plain decoding:"
    subtitle = f"{rule} adds “{escape(show_whitespace(''.join(step.pieces), 60))}”"
    if step.cut:
        subtitle += f" · cut short by {step.cut}"
    if folded:
        subtitle += f" · {count(folded, 'unjudged token')} folded away"
    return f"Step {step.index + 1} · {said}", subtitle


def _fold(tree: DiGraph, most: int) -> None:
    """Remove nodes beyond ``most``: judged nodes and their ancestors stay, then nodes stay in drafting order.

    A node's attribute ``hidden`` counts the nodes removed from its subtree.
    """
    parents = {child: parent for parent, child in tree.edges}
    kept = {node for node, status in tree.nodes.data("status") if status in (*JUDGED, "root", "bonus")}
    for node in reversed(list(tree)):
        if node in kept and node in parents:
            kept.add(parents[node])
    many = sum(status == PRUNED for _, status in tree.nodes.data("status")) > MANY
    for node, status in tree.nodes.data("status"):
        if len(kept) < most and parents.get(node) in kept and not (many and status == PRUNED):
            kept.add(node)
    folded = [node for node in tree if node not in kept]
    for node in folded:
        while node not in kept:
            node = parents[node]
        tree.nodes[node]["hidden"] = tree.nodes[node].get("hidden", 0) + 1
    tree.remove_nodes_from(folded)


def rows(tree: DiGraph) -> dict[str, float]:
    """Return the row of every node: networkx's layout by depth, with rows 1 apart and the first at 0.

    Nodes of one depth are in the order of their parents, so no edges cross.
    """
    from networkx import bfs_layout  # slow to import, and not needed when the app starts

    places = bfs_layout(tree, "0")
    across, down = zip(*places.values(), strict=True)
    columns, top = sorted(set(across)), min(down)
    pitch = columns[1] - columns[0] if columns[1:] else 1.0  # as far apart as rows
    return {node: round(float(y - top) / pitch, 6) for node, (_, y) in places.items()}


def _place(tree: DiGraph) -> tuple[int, int]:
    """Set label, printed numbers, position and column end of every node. Returns width and height in pixels."""
    roomy = len(tree) <= ROOMY
    pitch, size = (44, TEXT) if roomy else (19, SMALL)
    tree.graph.update(size=size)
    widths: defaultdict[int, float] = defaultdict(float)
    for _, data in tree.nodes.data():
        data["label"] = show_whitespace(data["text"], _LETTERS) or "∅"
        if "hidden" in data:
            data["label"] += f" +{data['hidden']}"
        data["wide"] = 18 + cells(data["label"]) * size * 0.602
        wide = data["wide"]
        if roomy and data["status"] in JUDGED:
            data["print"] = " ".join(f"{name} {number(data[name])}" for name in "qp" if name in data)
            wide = max(wide, len(data["print"]) * SMALL * 0.602)
        widths[data["depth"]] = max(widths[data["depth"]], wide)
    deepest = max(widths)
    gap = min(90.0, max(30.0, (920 - sum(widths.values())) / max(deepest, 1)))
    left = {depth: sum(widths[above] + gap for above in range(depth)) for depth in range(deepest + 1)}
    row = rows(tree)
    for node, data in tree.nodes.data():
        data.update(x=left[data["depth"]], end=left[data["depth"]] + widths[data["depth"]], y=(row[node] + 0.5) * pitch)
    return max(int(left[deepest] + widths[deepest]) + 10, 720), int((max(row.values()) + 1) * pitch) + 10


def _edges(fig: go.Figure, tree: DiGraph, theme: Theme, status: str) -> None:
    """Draw the edges to nodes of one status: a line to the end of the parent's column, then an S-curve."""
    style = LOOKS[status]
    x: list[float | None] = []
    y: list[float | None] = []
    for parent, child in tree.edges:
        above, below = tree.nodes[parent], tree.nodes[child]
        if below["status"] != status:
            continue
        start, end = above["end"] + 4, below["x"] - 7
        x += [round(above["x"] + above["wide"], 1), round(start, 1)]
        y += [above["y"], above["y"]]
        for part in (0.1, 0.22, 0.36, 0.5, 0.64, 0.78, 0.9, 1):
            x.append(round(start + (end - start) * part))
            y.append(round(above["y"] + (below["y"] - above["y"]) * part * part * (3 - 2 * part)))
        x.append(None)
        y.append(None)
    line = {
        "color": getattr(theme, style.line),
        "width": style.width,
        "dash": style.dash.replace("none", "solid"),
        "shape": "spline",
    }
    fig.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False, legendgroup=status)


def _nodes(fig: go.Figure, tree: DiGraph, theme: Theme, status: str) -> None:
    """Draw the nodes of one status, with hover texts and printed numbers, and the legend entry of the status."""
    style, size = LOOKS[status], tree.graph["size"]
    nodes = [(node, data) for node, data in tree.nodes.data() if data["status"] == status]
    line, text = getattr(theme, style.line), getattr(theme, style.text)
    marker = {"symbol": style.symbol, "size": 9, "color": line, "line": {"width": 1.5, "color": line}}
    group: dict[str, Any] = {"legendgroup": status, "showlegend": False, "cliponaxis": False, "textposition": "middle right"}
    fig.add_scatter(
        x=[round(data["x"], 1) for _, data in nodes], y=[data["y"] for _, data in nodes], mode="markers+text", marker=marker,
        text=[escape(f" {data['label']}") for _, data in nodes], textfont={"family": MONO, "size": size, "color": text},
        hovertext=[_hover(node, data) for node, data in nodes], hoverinfo="text", **group,
    )  # fmt: skip
    numbers = [data for _, data in nodes if "print" in data]
    if numbers:
        fig.add_scatter(
            x=[round(data["x"], 1) for data in numbers], y=[data["y"] + 16 for data in numbers], mode="text", hoverinfo="skip",
            text=[data["print"] for data in numbers], textfont={"family": MONO, "size": SMALL, "color": theme.mute}, **group,
        )  # fmt: skip
    drawn = {"line": {"color": line, "width": min(style.width, 3), "dash": style.dash.replace("none", "solid")}, "marker": marker}
    name = LEGEND.get(status, LABELS[status])
    fig.add_scatter(x=[None], y=[None], mode="lines+markers", name=name, hoverinfo="skip", legendgroup=status, **drawn)


def _hover(node: str, data: dict[str, Any]) -> str:
    """Return the hover text of a node: token, verdict and numbers."""
    lines = [f"<b>{escape(show_whitespace(data['text']))}</b>", LABELS[data["status"]]]
    if node == "bonus":
        lines[1] += f", from the {'residual' if data['source'] == 'residual' else 'target'}"
        return "<br>".join([*lines, f"target p {number(data.get('p'), 4)} · token {data['token']}"])
    if node != "0":
        q = number(data["q"], 4) if "q" in data else "none (chosen deterministically)"
        lines.append(f"drafter q {q} · target p {number(data.get('p'), 4)}")
    if tested := [f"{name} {number(data[name], 4)}" for name in ("threshold", "draw") if name in data]:
        lines.append(" · ".join(tested))
    if "row" in data:
        lines.append(f"row {data['row']}, column {data['column']}")
    return "<br>".join([*lines, f"node {node} · depth {data['depth']} · token {data['token']}"])
