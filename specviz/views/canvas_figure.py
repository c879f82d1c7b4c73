"""A canvas as a Plotly figure: one shape a verdict for all its edges or pills, one trace for its labels."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from specviz.views.canvas import Canvas, one_decimal
from specviz.views.theme import MONO, figure, wrapped
from specviz.views.verdicts import ORDER, Look, look

_LEAST_WIDTH = 720
_KEY_WIDTH = 150
_SIDE, _TOP = 20, 76


def drawn(canvas: Canvas, title: str, subtitle: str, width: float, height: float) -> go.Figure:
    """The figure. ``width`` and ``height`` are those of the drawing area in pixels; the key goes below it."""
    wide, high = int(max(width, _LEAST_WIDTH)), int(height)
    key = [*_key(canvas), *_bars(canvas)]
    bottom = 20 + 24 * -(-len(key) * _KEY_WIDTH // wide)
    subtitle = wrapped(subtitle, wide)
    top = _TOP + 16 * subtitle.count("<br>")
    size = {"width": wide + 2 * _SIDE, "height": high + _TOP + bottom}
    margin = {"l": _SIDE, "r": _SIDE, "t": top, "b": bottom}
    made = figure(canvas.theme, title, subtitle, **size, margin=margin, hoverdistance=60, shapes=_shapes(canvas))
    quiet = {"itemclick": False, "itemdoubleclick": False, "itemwidth": 34}
    made.update_layout(legend={"x": 0, "xanchor": "left", "y": 0, "yanchor": "top", **quiet}, showlegend=True)
    made.update_xaxes(visible=False, range=[0, wide])
    made.update_yaxes(visible=False, range=[high, 0])
    made.update_layout(annotations=_arrows(canvas))
    return made.add_traces([*key, *_marks(canvas), *_words(canvas)])


def _present(canvas: Canvas) -> list[tuple[Look, str]]:
    return [(look(status, canvas.theme), status) for status in ORDER if status in canvas.layers]


def _shapes(canvas: Canvas) -> list[dict[str, Any]]:
    """Bands at the bottom, then edges, the quietest first, then pills."""
    made = []
    for fill, bands in canvas.bands.items():
        made.append(_shape(bands, {"width": 0}, fill))
    for seen, status in sorted(_present(canvas), key=lambda pair: pair[0].width):
        made.append(_shape(canvas.layers[status].edges, {"color": seen.line, "width": seen.width, "dash": seen.dash}))
    for seen, status in _present(canvas):
        dash = seen.dash if seen.width < 2 else "solid"
        made.append(_shape(canvas.layers[status].pills, {"color": seen.line, "width": 1.4, "dash": dash}, seen.fill))
    return [shape for shape in made if shape["path"]]


def _shape(paths: list[str], line: dict[str, Any], fill: str | None = None) -> dict[str, Any]:
    area = {} if fill is None else {"fillcolor": fill, "fillrule": "nonzero"}
    return {"type": "path", "path": "".join(paths), "line": line, "layer": "below", **area}


def _arrows(canvas: Canvas) -> list[dict[str, Any]]:
    head = {
        "axref": "x",
        "ayref": "y",
        "showarrow": True,
        "arrowhead": 2,
        "arrowsize": 1.1,
        "arrowwidth": 1.6,
        "text": "",
    }
    made = []
    for one in canvas.arrows:
        (ax, ay), (x, y) = one.start, one.end
        ends = {"ax": one_decimal(ax), "ay": one_decimal(ay), "x": one_decimal(x), "y": one_decimal(y)}
        made.append({**ends, "arrowcolor": one.color, **head})
    return made


def _key(canvas: Canvas) -> list[go.Scatter]:
    """A key of dash, symbol and colour together."""
    made = []
    for seen, _ in _present(canvas):
        line = {"color": seen.line, "width": min(seen.width, 3), "dash": seen.dash}
        marker = {"symbol": seen.symbol, "size": 9, "color": seen.line, "line": {"width": 1.6, "color": seen.line}}
        drawn_as = {"mode": "lines+markers", "line": line, "marker": marker}
        made.append(go.Scatter(x=[None], y=[None], name=seen.label, hoverinfo="skip", **drawn_as))
    return made


def _marks(canvas: Canvas) -> list[go.Scatter]:
    """Symbols and labels of every verdict; the hover hangs on the label."""
    made = []
    for seen, status in _present(canvas):
        layer = canvas.layers[status]
        if not layer.labels:
            continue
        marker = {"symbol": seen.symbol, "size": 8, "color": seen.text, "line": {"width": 1.4, "color": seen.text}}
        made.append(_points(layer.symbols, mode="markers", hoverinfo="skip", marker={**marker, "opacity": 1}))
        hovers = [hover for _, _, _, hover in layer.labels]
        hover = {"hovertext": hovers, "hoverinfo": "text"} if any(hovers) else {"hoverinfo": "skip"}
        font = {"family": MONO, "size": canvas.size, "color": seen.text}
        labels = [label for _, _, label, _ in layer.labels]
        places = [(x, y) for x, y, _, _ in layer.labels]
        made.append(_points(places, mode="text", text=labels, textfont=font, **hover))
    return made


def _points(places: list[tuple[float, float]], **more: Any) -> go.Scatter:
    x, y = zip(*places, strict=True)
    return go.Scatter(
        x=[one_decimal(one) for one in x], y=[one_decimal(one) for one in y], showlegend=False, cliponaxis=False, **more
    )


def _bars(canvas: Canvas) -> list[go.Scatter]:
    made = []
    for line, bars in canvas.bars.items():
        x = [end for left, right, _ in bars for end in (one_decimal(left), one_decimal(right), None)]
        y = [end for _, _, high in bars for end in (one_decimal(high), one_decimal(high), None)]
        drawn_as = {"color": line.color, "width": 3, "dash": line.dash}
        made.append(go.Scatter(x=x, y=y, mode="lines", name=line.name, hoverinfo="skip", line=drawn_as))
    return made


def _words(canvas: Canvas) -> list[go.Scatter]:
    made = []
    for face, found in canvas.words.items():
        font = {"family": face.family, "size": face.size, "color": face.color, "weight": face.weight}
        text = [one for _, _, one in found]
        places = [(x, y) for x, y, _ in found]
        made.append(_points(places, mode="text", text=text, textposition=face.anchor, hoverinfo="skip", textfont=font))
    return made
