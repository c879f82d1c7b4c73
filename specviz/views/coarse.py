"""Rows drafted at half the resolution, and the fine rows an up-sampler made of them, on one scale."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.trace.schema import Trace
from specviz.views.code_map import board, codes_of, squares
from specviz.views.notes import story
from specviz.views.theme import count, figure, theme_of


def coarse(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Above the coarse codes, below the fine ones; a coarse cell is as wide as the two fine ones under it."""
    step, note = story(trace, index, "coarse")
    look, book = theme_of(theme), codes_of(trace.run)
    small, fine = note.wholes("codes"), note.wholes("fine")
    columns = trace.run.grid[1] if trace.run.grid else max(1, len(fine) // 2)
    half = max(1, columns // 2)
    rows = max(1, -(-len(small) // half))
    size = min(40.0, 820 / columns)
    title = f"Step {step.index + 1} · {count(len(small), 'coarse code')} for {len(fine)} fine ones"
    said = "the low-resolution model draws one code a pass; the up-sampler makes four of each"
    made = figure(look, title, said, width=900, height=int(140 + size * (4 * rows + 1.5)))
    above = [(2 * (place // half) + 0.5, 2 * (place % half) + 0.5) for place in range(len(small))]
    below = [(2 * rows + 0.8 + place // columns, place % columns) for place in range(len(fine))]
    squares(made, look, above, [book.colour(code) for code in small], 2 * size, told=[f"#{code}" for code in small])
    squares(made, look, below, [book.colour(code) for code in fine], size, told=[f"#{code}" for code in fine])
    board(made, (0, 4 * rows + 1), columns)
    return made
