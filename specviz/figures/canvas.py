"""Pixel canvas for figures made of token pills, edges and hairline bars instead of axes.

A canvas collects marks; ``drawn`` makes a Plotly figure of them: one shape a verdict for all its edges or pills, one trace
for its labels.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import plotly.graph_objects as go

from specviz.figures.theme import SMALL, TEXT, cells, escape, figure, show_whitespace, wrapped
from specviz.figures.verdicts import ORDER, Look, look
from specviz.palette import MONO, SANS, Theme

PILL = 20.0
_SYMBOL = 17.0
_PAD = 6.0
_CORNER = 5.0
_LEAST_WIDTH = 720
_KEY_WIDTH = 150
_SIDE, _TOP = 20, 76


class Face(NamedTuple):
    """How words are set."""

    family: str
    weight: int


class Line(NamedTuple):
    """What the key calls bars of one colour and dash."""

    name: str
    color: str
    dash: str


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

    def pill(self, x: float, y: float, text: str, status: str, hover: str = "", most: int = 18) -> float:
        """A token in the look of its verdict, its left edge at ``x``, centred on ``y``. Gives back its right edge."""
        label = _label(text, most)
        wide = self.width_of(text, most)
        high = PILL if self.size >= TEXT else PILL - 3
        layer = self.layers[status]
        layer.pills.append(rounded(x, y - high / 2, wide, high))
        if look(status, self.theme).double:
            layer.pills.append(rounded(x - 3, y - high / 2 - 3, wide + 6, high + 6))
        layer.symbols.append((x + 9, y))
        layer.labels.append((x + _SYMBOL + text_width(label, self.size) / 2, y, escape(label), hover))
        return x + wide

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

    def write(self, x: float, y: float, text: str, *, mono: bool = False, weight: int = 400) -> None:
        """Small words that start at a point."""
        self.words[Face(MONO if mono else SANS, weight)].append((x, y, escape(text)))


def text_width(text: str, size: float = TEXT) -> float:
    """Width in pixels of text in a monospace font, whose cells are 0.6 em wide."""
    return cells(text) * size * 0.602


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
    return show_whitespace(text, most) or "∅"


def _path(*parts: str | float) -> str:
    """SVG path text; a comma only between two numbers."""
    out = ""
    for part in parts:
        comma = "" if isinstance(part, str) or out[-1].isalpha() else ","
        out += part if isinstance(part, str) else f"{comma}{one_decimal(part):g}"
    return out


def drawn(canvas: Canvas, title: str, subtitle: str, width: float, height: float) -> go.Figure:
    """The figure. ``width`` and ``height`` are those of the drawing area in pixels; the key goes below it."""
    wide, high = int(max(width, _LEAST_WIDTH)), int(height)
    key = [*_key(canvas), *_bars(canvas)]
    bottom = 20 + 24 * -(-len(key) * _KEY_WIDTH // wide)
    subtitle = wrapped(subtitle, wide)
    top = _TOP + 16 * subtitle.count("<br>")
    size: dict[str, Any] = {"width": wide + 2 * _SIDE, "height": high + _TOP + bottom}
    margin = {"l": _SIDE, "r": _SIDE, "t": top, "b": bottom}
    fig = figure(canvas.theme, title, subtitle, **size, margin=margin, hoverdistance=60, shapes=_shapes(canvas))
    quiet = {"itemclick": False, "itemdoubleclick": False, "itemwidth": 34}
    fig.update_layout(legend={"x": 0, "xanchor": "left", "y": 0, "yanchor": "top", **quiet}, showlegend=True)
    fig.update_xaxes(visible=False, range=[0, wide])
    fig.update_yaxes(visible=False, range=[high, 0])
    return fig.add_traces([*key, *_marks(canvas), *_words(canvas)])


def _present(canvas: Canvas) -> list[tuple[Look, str]]:
    return [(look(status, canvas.theme), status) for status in ORDER if status in canvas.layers]


def _shapes(canvas: Canvas) -> list[dict[str, Any]]:
    """Edges, the quietest first, then pills."""
    shapes = []
    for style, status in sorted(_present(canvas), key=lambda pair: pair[0].width):
        shapes.append(_shape(canvas.layers[status].edges, {"color": style.line, "width": style.width, "dash": style.dash}))
    for style, status in _present(canvas):
        dash = style.dash if style.width < 2 else "solid"
        shapes.append(_shape(canvas.layers[status].pills, {"color": style.line, "width": 1.4, "dash": dash}, style.fill))
    return [shape for shape in shapes if shape["path"]]


def _shape(paths: list[str], line: dict[str, Any], fill: str | None = None) -> dict[str, Any]:
    area = {} if fill is None else {"fillcolor": fill, "fillrule": "nonzero"}
    return {"type": "path", "path": "".join(paths), "line": line, "layer": "below", **area}


def _key(canvas: Canvas) -> list[go.Scatter]:
    """A key of dash, symbol and colour together."""
    entries = []
    for style, _ in _present(canvas):
        line = {"color": style.line, "width": min(style.width, 3), "dash": style.dash}
        marker = {"symbol": style.symbol, "size": 9, "color": style.line, "line": {"width": 1.6, "color": style.line}}
        drawn_as = {"mode": "lines+markers", "line": line, "marker": marker}
        entries.append(go.Scatter(x=[None], y=[None], name=style.label, hoverinfo="skip", **drawn_as))
    return entries


def _marks(canvas: Canvas) -> list[go.Scatter]:
    """Symbols and labels of every verdict; the hover hangs on the label."""
    traces = []
    for style, status in _present(canvas):
        layer = canvas.layers[status]
        if not layer.labels:
            continue
        marker = {"symbol": style.symbol, "size": 8, "color": style.text, "line": {"width": 1.4, "color": style.text}}
        traces.append(_points(layer.symbols, mode="markers", hoverinfo="skip", marker={**marker, "opacity": 1}))
        hovers = [hover for _, _, _, hover in layer.labels]
        hover = {"hovertext": hovers, "hoverinfo": "text"} if any(hovers) else {"hoverinfo": "skip"}
        font = {"family": MONO, "size": canvas.size, "color": style.text}
        labels = [label for _, _, label, _ in layer.labels]
        places = [(x, y) for x, y, _, _ in layer.labels]
        traces.append(_points(places, mode="text", text=labels, textfont=font, **hover))
    return traces


def _points(places: list[tuple[float, float]], **more: Any) -> go.Scatter:
    x, y = zip(*places, strict=True)
    return go.Scatter(
        x=[one_decimal(left) for left in x],
        y=[one_decimal(top) for top in y],
        showlegend=False,
        cliponaxis=False,
        **more,
    )


def _bars(canvas: Canvas) -> list[go.Scatter]:
    traces = []
    for line, bars in canvas.bars.items():
        x = [end for left, right, _ in bars for end in (one_decimal(left), one_decimal(right), None)]
        y = [end for _, _, high in bars for end in (one_decimal(high), one_decimal(high), None)]
        drawn_as = {"color": line.color, "width": 3, "dash": line.dash}
        traces.append(go.Scatter(x=x, y=y, mode="lines", name=line.name, hoverinfo="skip", line=drawn_as))
    return traces


def _words(canvas: Canvas) -> list[go.Scatter]:
    traces = []
    for face, words in canvas.words.items():
        font = {"family": face.family, "size": SMALL, "color": canvas.theme.mute, "weight": face.weight}
        text = [word for _, _, word in words]
        places = [(x, y) for x, y, _ in words]
        traces.append(_points(places, mode="text", text=text, textposition="middle right", hoverinfo="skip", textfont=font))
    return traces
