"""One step's draft tree as a networkx graph, and that graph as GraphML or node-link JSON."""

from __future__ import annotations

import io
import re
from typing import Any

import networkx as nx

from specviz.trace.schema import Bonus, Node, Step

BONUS = "bonus"
_NOT_XML = re.compile("[^\t\n\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold, and the carriage return, which its readers turn into a line end."""


def graph(step: Step) -> nx.DiGraph:
    """Nodes are "0" (the root) to "n", and "bonus"; their attributes are scalars, left out where they are unknown."""
    tree = nx.DiGraph(
        step=step.index, position=step.position, rule=step.rule, emitted="".join(step.pieces), accepted=step.accepted,
        verified=step.verified,
    )  # fmt: skip
    if step.cut is not None:
        tree.graph["cut"] = step.cut
    path = set(step.path)
    for place, (node, depth) in enumerate(zip(step.nodes, step.depths, strict=True)):
        tree.add_node(str(place), **_attributes(node), depth=depth, status=node.status, on_path=place == 0 or place in path)
        if node.parent >= 0:
            tree.add_edge(str(node.parent), str(place), on_path=place in path)
    if step.bonus is not None:
        depth = step.depths[step.bonus.parent] + 1
        tree.add_node(BONUS, **_attributes(step.bonus), depth=depth, status=BONUS, on_path=True, source=step.bonus.source)
        tree.add_edge(str(step.bonus.parent), BONUS, on_path=True)
    return tree


def _attributes(node: Node | Bonus) -> dict[str, Any]:
    row, column = node.grid or (None, None)
    attributes = {
        "token": node.token, "text": node.text, "p": node.p, "q": getattr(node, "q", None), "row": row,
        "column": column, "threshold": getattr(node, "threshold", None), "draw": getattr(node, "draw", None),
    }  # fmt: skip
    return {name: value for name, value in attributes.items() if value is not None}


def node_link(step: Step) -> dict[str, Any]:
    """networkx's node-link data, with its edges under "edges"."""
    document: dict[str, Any] = nx.node_link_data(graph(step), edges="edges")
    return document


def graphml(step: Step) -> str:
    """A GraphML document. Characters that XML has no way to write become \\xNN."""
    tree = graph(step)
    for attributes in (tree.graph, *(data for _, data in tree.nodes(data=True))):
        for name, value in attributes.items():
            if isinstance(value, str):
                attributes[name] = _NOT_XML.sub(lambda match: f"\\x{ord(match[0]):02X}", value)
    buffer = io.BytesIO()
    nx.write_graphml_xml(tree, buffer, encoding="utf-8", infer_numeric_types=True)
    return buffer.getvalue().decode("utf-8")
