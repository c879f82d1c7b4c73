"""Trees drawn with dots: where each node stands, left to right by depth, and the lines between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from specviz.views.tidy import centres

MOST = 600
"""A drawing of more dots than this says nothing."""


class Spots(NamedTuple):
    """Depth and height of every node, the highest at 0 and the lowest at -1."""

    x: list[float]
    y: list[float]


def spots(parents: Sequence[int]) -> Spots:
    """The nodes of a tree; ``parents[i] < i`` and the root's is -1."""
    depths: list[float] = []
    for parent in parents:
        depths.append(0.0 if parent < 0 else depths[parent] + 1)
    high = centres(parents, [1.0] * len(parents))
    tall = max(high) or 1.0
    return Spots(depths, [round(-one / tall, 4) for one in high])


def lines(parents: Sequence[int], where: Spots, wanted: Sequence[int]) -> dict[str, list[Any]]:
    """``x`` and ``y`` of the lines from their parents to the ``wanted`` nodes, as one trace with gaps."""
    x: list[Any] = []
    y: list[Any] = []
    for node in wanted:
        if parents[node] >= 0:
            x += [where.x[parents[node]], where.x[node], None]
            y += [where.y[parents[node]], where.y[node], None]
    return {"x": x, "y": y}


def marks(where: Spots, wanted: Sequence[int]) -> dict[str, list[float]]:
    """``x`` and ``y`` of the ``wanted`` nodes."""
    return {"x": [where.x[node] for node in wanted], "y": [where.y[node] for node in wanted]}
