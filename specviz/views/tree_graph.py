"""One step's tree as a networkx graph, for whoever wants to count, lay out or draw it in their own way."""

from __future__ import annotations

from typing import Any

import networkx as nx

from specviz.trace.schema import Step
from specviz.views.verdicts import BONUS


def tree_graph(step: Step) -> nx.DiGraph[int]:
    """Edges point from parent to child; node numbers are the step's, the bonus token comes last with status "bonus".

    Attributes are plain numbers, texts and truth values; those that a node does not have are left out, so that every
    networkx writer takes the graph. ``on_path`` says that a node or an edge belongs to what the step kept.
    """
    graph: nx.DiGraph[int] = nx.DiGraph(
        index=step.index, position=step.position, rule=step.rule, emitted="".join(step.pieces)
    )
    kept = {0, *step.path}
    depths = step.depths
    for number, node in enumerate(step.nodes):
        known = {"q": node.q, "p": node.p, "threshold": node.threshold, "draw": node.draw}
        _add(
            graph,
            number,
            node.parent,
            number in kept,
            token=node.token,
            text=node.text,
            status=node.status,
            depth=depths[number],
            position=step.position + depths[number],
            **known,
            **_place(node.grid),
        )
    if step.bonus is not None:
        bonus, depth = step.bonus, depths[step.bonus.parent] + 1
        _add(
            graph,
            len(step.nodes),
            bonus.parent,
            True,
            token=bonus.token,
            text=bonus.text,
            status=BONUS,
            depth=depth,
            position=step.position + depth,
            p=bonus.p,
            source=bonus.source,
            **_place(bonus.grid),
        )
    return graph


def _add(graph: nx.DiGraph[int], number: int, parent: int, kept: bool, **known: Any) -> None:
    graph.add_node(number, on_path=kept, **{name: value for name, value in known.items() if value is not None})
    if parent >= 0:
        graph.add_edge(parent, number, on_path=kept)


def _place(grid: tuple[int, int] | None) -> dict[str, int]:
    return {} if grid is None else {"row": grid[0], "column": grid[1]}
