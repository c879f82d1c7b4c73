"""One step's tree as a networkx graph, for whoever wants to count, lay out or draw it in their own way."""

from __future__ import annotations

import networkx as nx

from specviz.trace.graph import graph
from specviz.trace.schema import Step


def tree_graph(step: Step) -> nx.DiGraph:
    """Nodes "0" (the root) to "n" and "bonus" with token, text, q, p, status, depth and ``on_path`` as attributes."""
    return graph(step)
