"""Tidy-tree layout: left to right by depth, parents centred on children, packed without crossing.

The idea is Reingold and Tilford's (1981): subtrees are slid together until their outlines touch, depth by depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Outline:
    """Upper and lower edge of a subtree at each depth below its top node, measured from that node's centre."""

    top: list[float]
    bottom: list[float]


def centres(parents: Sequence[int], heights: Sequence[float]) -> list[float]:
    """The vertical centre of every node, the topmost edge at 0. ``parents[i] < i``; siblings keep their order."""
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(node)
    offset = [0.0] * len(parents)
    outlines: list[_Outline | None] = [None] * len(parents)
    for node in reversed(range(len(parents))):
        half = heights[node] / 2
        below = _side_by_side(children[node], outlines, offset)
        outlines[node] = _Outline([-half, *below.top], [half, *below.bottom])
    root_outline = outlines[0]
    middles = [-min(root_outline.top) if root_outline else 0.0]
    for node, parent in enumerate(parents[1:], start=1):
        middles.append(middles[parent] + offset[node])
    return middles


def _side_by_side(children: Sequence[int], outlines: list[_Outline | None], offset: list[float]) -> _Outline:
    """Slide the children's subtrees together, write each one's offset from the middle, give back their outline."""
    joined = _Outline([], [])
    places: list[float] = []
    for child in children:
        outline, outlines[child] = outlines[child], None
        assert outline is not None, "children come after their parent"
        shared = zip(joined.bottom, outline.top, strict=False)
        place = max((low - high for low, high in shared), default=0.0)
        places.append(place)
        joined.top += [place + edge for edge in outline.top[len(joined.top) :]]
        joined.bottom[: len(outline.bottom)] = [place + edge for edge in outline.bottom]
    middle = (places[0] + places[-1]) / 2 if places else 0.0
    for child, place in zip(children, places, strict=True):
        offset[child] = place - middle
    return _Outline([edge - middle for edge in joined.top], [edge - middle for edge in joined.bottom])


def columns(depths: Sequence[int], widths: Sequence[float], gap: float) -> list[tuple[float, float]]:
    """Left and right edge of the column of each depth, each as wide as its widest node, ``gap`` apart."""
    widest = [0.0] * (max(depths) + 1)
    for depth, width in zip(depths, widths, strict=True):
        widest[depth] = max(widest[depth], width)
    edges: list[tuple[float, float]] = []
    left = 0.0
    for width in widest:
        edges.append((left, left + width))
        left += width + gap
    return edges
