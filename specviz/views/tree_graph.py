"""One step's tree as a networkx graph, for whoever wants to count, lay out or draw it in their own way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.trace.schema import Step

if TYPE_CHECKING:
    import networkx as nx


def tree_graph(step: Step) -> nx.DiGraph:
    """Nodes "0" (the root) to "n" and "bonus" with token, text, q, p, status, depth and ``on_path`` as attributes."""
    from specviz.trace.graph import graph  # networkx takes a while to import, and the other views do without it

    return graph(step)
