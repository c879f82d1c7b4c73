"""Local verification of a block: which cells failed, which were taken along, and in which wave each was drawn again."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.trace.schema import Step, Trace
from specviz.views.code_map import board, squares
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, count, figure, theme_of


def islands(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """The block's cells in their rows: pooled mass as heat, a cross where it failed, the wave's number where drawn again."""
    step, note = story(trace, index, "islands")
    look = theme_of(theme)
    cells = [(node.grid[0], node.grid[1]) if node.grid else (0, place) for place, node in enumerate(step.nodes[1:])]
    mass, waves = note.numbers("mass", len(cells)), note.wholes("waves")
    failed, tau = set(note.wholes("failed", len(step.nodes))), note.number("tau")
    columns = max((column for _, column in cells), default=0) + 1
    top, bottom = min((row for row, _ in cells), default=0), max((row for row, _ in cells), default=0) + 1
    size = min(44.0, 820 / columns)
    made = figure(
        look, *_headline(step, note, cells, waves), width=900, height=int(150 + size * 1.05 * (bottom - top)), key=True
    )
    told = [
        f"row {row + 1}, column {column + 1}<br>pooled mass {one:.3g}, bar {tau:g}"
        for (row, column), one in zip(cells, mass, strict=True)
    ]
    squares(made, look, cells, [_heat(look, one, tau) for one in mass], size, told=told)
    _marks(made, look, cells, failed, waves, size)
    _stale(made, look, cells, note, size)
    board(made, (top, bottom), columns)
    return made


def _headline(step: Step, note: Story, cells: list[tuple[int, int]], waves: list[int]) -> tuple[str, str]:
    failed, again = len(note.wholes("failed", len(step.nodes))), sum(wave > 0 for wave in waves)
    title = f"Step {step.index + 1} · {failed} of {count(len(cells), 'cell')} failed, {again} drawn again"
    parts = count(len(note.levels("islands", len(step.nodes))), "island")
    passes = note.whole("passes")
    return title, f"{parts}, {passes} pass{'' if passes == 1 else 'es'} of the target; {_entries(step, note)}"


def _entries(step: Step, note: Story) -> str:
    if note.data.get("rewritten") is not False:
        return "cache entries renewed after the last wave"
    if "stale" not in note.data:  # an older trace
        return "cache entries left stale: an approximation"
    left = len(note.wholes("stale", len(step.nodes)))
    return f"{left} cache entr{'y' if left == 1 else 'ies'} left stale: an approximation" if left else "no cache entry is stale"


def _heat(look: Theme, mass: float, tau: float) -> str:
    """White above the bar, the deeper the further below."""
    short = max(0.0, min(1.0, 1 - mass / max(tau, 1e-9)))
    return f"rgba(213,94,0,{0.08 + 0.8 * short:.2f})" if short else look.paper


def _marks(
    made: go.Figure, look: Theme, cells: list[tuple[int, int]], failed: set[int], waves: list[int], size: float
) -> None:
    crossed = [cell for node, cell in enumerate(cells, start=1) if node in failed]
    made.add_scatter(
        x=[column for _, column in crossed], y=[row for row, _ in crossed], mode="markers", name="failed", hoverinfo="skip",
        marker={"symbol": "x-thin", "size": size * 0.7, "line": {"width": 1.5, "color": look.rejected}},
    )  # fmt: skip
    again = [(cell, wave) for cell, wave in zip(cells, waves, strict=False) if wave]
    made.add_scatter(
        x=[column for (_, column), _ in again], y=[row for (row, _), _ in again], mode="text", name="wave",
        text=[str(wave) for _, wave in again], textfont={"size": 13, "color": look.ink}, hoverinfo="skip",
    )  # fmt: skip


def _stale(made: go.Figure, look: Theme, cells: list[tuple[int, int]], note: Story, size: float) -> None:
    """A stroke over every cell whose cache entry was left as it was although something in front of it changed."""
    left = [cells[node - 1] for node in note.wholes("stale", len(cells) + 1) if node] if "stale" in note.data else []
    if left:
        made.add_scatter(
            x=[column for _, column in left], y=[row for row, _ in left], mode="markers", name="cache entry not renewed",
            marker={"symbol": "line-ne", "size": size * 0.8, "line": {"width": 1, "color": look.mute}}, hoverinfo="skip",
        )  # fmt: skip
