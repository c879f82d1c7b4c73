"""A drawing measured in pixels, for views made of token pills, edges and hairline bars instead of axes.

It only collects marks; ``canvas_figure`` makes a Plotly figure of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from specviz.views.theme import MONO, SANS, SMALL, TEXT, Theme, cells, safe, visible
from specviz.views.verdicts import look

PILL = 20.0
_SYMBOL = 17.0
_PAD = 6.0
_CORNER = 5.0


class Face(NamedTuple):
    """How words are set. ``anchor`` is Plotly's textposition: "middle right" means that they start at their point."""

    anchor: str
    size: float
    color: str
    family: str
    weight: int


class Line(NamedTuple):
    """What the key calls bars of one colour and dash."""

    name: str
    color: str
    dash: str


class Arrow(NamedTuple):
    """A straight arrow, from its start to its end."""

    start: tuple[float, float]
    end: tuple[float, float]
    color: str


@dataclass
class Layer:
    """What one verdict has on the canvas so far: path text of edges and pills, places of symbols, labels with hover."""

    edges: list[str] = field(default_factory=list)
    pills: list[str] = field(default_factory=list)
    symbols: list[tuple[float, float]] = field(default_factory=list)
    labels: list[tuple[float, float, str, str]] = field(default_factory=list)


@dataclass
class Canvas:
    """Collects marks, x to the right and y down in pixels."""

    theme: Theme
    size: float = TEXT
    layers: dict[str, Layer] = field(default_factory=lambda: defaultdict(Layer))
    bars: dict[Line, list[tuple[float, float, float]]] = field(default_factory=lambda: defaultdict(list))
    words: dict[Face, list[tuple[float, float, str]]] = field(default_factory=lambda: defaultdict(list))
    bands: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    arrows: list[Arrow] = field(default_factory=list)

    def pill(self, x: float, y: float, text: str, status: str, hover: str = "", most: int = 18) -> float:
        """A token in the look of its verdict, its left edge at ``x``, centred on ``y``. Gives back its right edge."""
        shown = _label(text, most)
        wide = self.width_of(text, most)
        high = PILL if self.size >= TEXT else PILL - 3
        layer = self.layers[status]
        layer.pills.append(rounded(x, y - high / 2, wide, high))
        if look(status, self.theme).double:
            layer.pills.append(rounded(x - 3, y - high / 2 - 3, wide + 6, high + 6))
        layer.symbols.append((x + 9, y))
        layer.labels.append((x + _SYMBOL + text_width(shown, self.size) / 2, y, safe(shown), hover))
        return x + wide

    def word(self, x: float, y: float, text: str, color: str = "", most: int = 18) -> None:
        """A token as a plain word starting at ``x``, for what was not drafted."""
        shown = _label(text, most)
        place = x + text_width(shown, self.size) / 2
        self.write(place, y, shown, size=self.size, color=color, mono=True, anchor="middle center")

    def width_of(self, text: str, most: int = 18) -> float:
        """How wide the pill of this token is."""
        return _SYMBOL + max(text_width(_label(text, most), self.size), 6) + _PAD

    def edge(self, start: tuple[float, float], bend: float, end: tuple[float, float], status: str) -> None:
        """A line from ``start`` straight to x = ``bend``, then in an S to ``end``, in the look of its verdict."""
        (x0, y0), (x1, y1) = start, end
        middle = (bend + x1) / 2
        self.layers[status].edges.append(_path("M", x0, y0, "L", bend, y0, "C", middle, y0, middle, y1, x1, y1))

    def bar(self, x: float, y: float, length: float, line: Line) -> None:
        """A hairline bar."""
        self.bars[line].append((x, x + max(length, 0.8), y))

    def write(
        self, x: float, y: float, text: str, *, size: float = SMALL, color: str = "", mono: bool = False,
        anchor: str = "middle right", weight: int = 400,
    ) -> None:  # fmt: skip
        """Words at a point."""
        face = Face(anchor, size, color or self.theme.mute, MONO if mono else SANS, weight)
        self.words[face].append((x, y, safe(text)))

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A straight arrow."""
        self.arrows.append(Arrow(start, end, self.theme.mute))

    def band(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """A soft rounded area behind other marks."""
        self.bands[fill].append(rounded(x, y, width, height))


def text_width(shown: str, size: float = TEXT) -> float:
    """Width in pixels of text in a monospace font, whose cells are 0.6 em wide."""
    return cells(shown) * size * 0.602


def rounded(x: float, y: float, width: float, height: float) -> str:
    """A rounded rectangle as path text."""
    c = min(_CORNER, width / 2, height / 2)
    r, b = x + width, y + height
    sides = ("L", r - c, y, "Q", r, y, r, y + c, "L", r, b - c, "Q", r, b, r - c, b, "L", x + c, b, "Q", x, b, x, b - c)
    return _path("M", x + c, y, *sides, "L", x, y + c, "Q", x, y, x + c, y) + "Z"


def one_decimal(value: float) -> float:
    """Finer than any screen, and it keeps the figure small."""
    return round(value, 1)


def _label(text: str, most: int) -> str:
    return visible(text, most) or "∅"


def _path(*parts: str | float) -> str:
    """SVG path text; a comma only between two numbers."""
    out = ""
    for part in parts:
        comma = "" if isinstance(part, str) or out[-1].isalpha() else ","
        out += part if isinstance(part, str) else f"{comma}{one_decimal(part):g}"
    return out
