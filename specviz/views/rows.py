"""The cache of a batch: every row's kept entries and the holes that rejected nodes left, before and after a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.errors import BadTrace
from specviz.trace.schema import Trace
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, axis, count, figure, percent, theme_of

_MOST = 8
_WIDTH, _HIGH = 1000, 34


class _Row(NamedTuple):
    """One row's slots: ``runs`` are lengths of kept and rejected stretches in turn, a kept one first."""

    number: int
    runs: list[int]

    @property
    def kept(self) -> int:
        return sum(self.runs[::2])

    @property
    def holes(self) -> int:
        return sum(self.runs[1::2])


def rows(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """A bar a row, slot by slot. Where the round ended with a sweep, the rows as it left them stand below."""
    step, note = story(trace, index, "rows")
    look = theme_of(theme)
    found = [_Row(row.whole("row"), row.wholes("runs", 1 << 24)) for row in note.rows("rows", _MOST)]
    if not found:
        raise BadTrace(f"{note.where}: a batch without rows; the trace is damaged.")
    swept, mine = note.data.get("swept") is True, note.whole("row")
    lines = len(found) * (2 if swept else 1) + (1 if swept else 0)
    made = figure(look, *_headline(step.index, note, found, swept), width=_WIDTH, height=170 + _HIGH * lines, key=True)
    names, before = [], list(found)
    for row in before:
        names.append(f"<b>row {row.number + 1}</b>, this run" if row.number == mine else f"row {row.number + 1}")
    places = list(range(len(found)))
    _bars(made, look, found, places)
    if swept:
        after = [_Row(row.number, [row.kept]) for row in found]
        below = [place + len(found) + 1 for place in places]
        _bars(made, look, after, below)
        names, places = [*names, "<b>swept</b>", *names], [*places, len(found), *below]
    widest = max(row.kept + row.holes for row in found)
    made.update_layout(barmode="overlay", bargap=0.25)
    made.update_xaxes(axis(look, "slot of the cache", grid=False, range=[0, max(1, widest) * 1.01]))
    scale = {"tickvals": places, "ticktext": names, "range": [lines - 0.4, -0.6]}
    made.update_yaxes(axis(look, "", grid=False, **scale))
    return made


def _headline(index: int, note: Story, found: Sequence[_Row], swept: bool) -> tuple[str, str]:
    name, holes = f"Step {index + 1}", sum(row.holes for row in found)
    slots = holes + sum(row.kept for row in found)
    share = percent(holes / max(1, slots))
    what = "swept away" if swept else "masked"
    title = f"{name} · {count(len(found), 'row')}, {count(holes, 'hole')} {what}, {share} of the slots"
    every = note.whole("every")
    when = (
        f"a sweep every {count(every, 'round')} moves what is kept to the front" if every else "no sweeps in this batch"
    )
    return title, f"each row writes behind its own last kept entry; rejected nodes before it stay as holes; {when}"


def _bars(made: go.Figure, look: Theme, found: Sequence[_Row], places: Sequence[int]) -> None:
    """Kept stretches as solid bars, holes as outlined ones."""
    parts: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
    for row, place in zip(found, places, strict=True):
        start = 0
        for number, length in enumerate(row.runs):
            if length:
                parts[number % 2 == 0].append((place, start, length))
            start += length
    first = places[0] == 0
    for kept, name in ((True, "kept"), (False, "hole: a rejected node, never seen again")):
        if not parts[kept]:
            continue
        y, base, wide = zip(*parts[kept], strict=True)
        fill = look.accepted if kept else look.tints["rejected"]
        line = {"width": 0 if kept else 1, "color": look.rejected}
        made.add_bar(
            y=y, base=base, x=wide, orientation="h", name=name, showlegend=first, marker={"color": fill, "line": line},
            hovertext=[f"slots {start} to {start + length - 1}" for _, start, length in parts[kept]], hoverinfo="text",
        )  # fmt: skip
