"""A tree judged from its leaves upwards: each visited node a tank filled by its weight, its coin, and who was rescued."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.trace.schema import Step, Trace
from specviz.views.canvas import PILL, Canvas, Line, text_width
from specviz.views.canvas_figure import drawn
from specviz.views.notes import Story, node_of, story
from specviz.views.theme import SMALL, count, number, safe, theme_of, visible
from specviz.views.tidy import centres, columns

_LETTERS = 14
_MOST = 160
_FULL = 56.0
_OUTCOMES = ("accepted", "failed", "passed")
_ROOT_WIDTH = 24.0


class _Visit(NamedTuple):
    """What happened at a node, and when."""

    turn: int
    weight: float | None
    draw: float | None
    outcome: str

    @property
    def said(self) -> str:
        if self.outcome == "passed":
            return "kept with the path below it, without a coin"
        coin = "" if self.draw is None else f", coin {number(self.draw, 3)}"
        return f"weight {number(self.weight, 3)}{coin}: {self.outcome}"


def traversal(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """The numbers count the visits; under a node its weight as a bar of at most 1, and the coin as a tick on it."""
    step, note = story(trace, index, "traversal")
    visits = _visits(step, note)
    rescued = {node for node in note.wholes("rescued", len(step.nodes)) if node in step.path}
    canvas = Canvas(theme_of(theme))
    width, height = _tree(canvas, step, visits, rescued)
    return drawn(canvas, *_headline(step, visits, rescued, note.whole("top_down")), width, height)


def _visits(step: Step, note: Story) -> dict[int, _Visit]:
    """The last visit of every node."""
    found = {}
    for turn, row in enumerate(note.rows("visits", 2000), start=1):
        outcome = row.word("outcome", _OUTCOMES)
        weight = None if row.data.get("weight") is None else row.share("weight")
        draw = None if row.data.get("draw") is None else row.share("draw")
        found[node_of(step, row)] = _Visit(turn, weight, draw, outcome)
    return found


def _headline(step: Step, visits: dict[int, _Visit], rescued: set[int], top_down: int) -> tuple[str, str]:
    name = f"Step {step.index + 1}"
    if not visits:
        return f"{name} · nothing was drafted", "there was no tree to judge"
    title = f"{name} · {count(len(step.path), 'token')} kept, {top_down} from the root down"
    judged = sum(visit.outcome != "passed" for visit in visits.values())
    said = (
        f"leaf to root, {count(judged, 'node')} judged in the order of the numbers; "
        "a path is kept when a coin falls below its weight"
    )
    if rescued:
        said += f"; the shaded {count(len(rescued), 'token')} would have been lost from the root down"
    return title, said


def _tree(canvas: Canvas, step: Step, visits: dict[int, _Visit], rescued: set[int]) -> tuple[float, float]:
    nodes = _shown(step)
    place = {node: at for at, node in enumerate(nodes)}
    depths = [step.depths[node] for node in nodes]
    heights = [PILL + (22.0 if _weighed(visits, node) else 9.0) for node in nodes]
    widths = [max(canvas.width_of(step.nodes[node].text, _LETTERS), _FULL) + _ROOT_WIDTH for node in nodes]
    lanes = columns(depths, widths, 34.0)
    rows = centres([place.get(step.nodes[node].parent, -1) for node in nodes], heights)
    ends: dict[int, float] = {}
    for at, node in enumerate(nodes):
        one, row, left = step.nodes[node], rows[at], lanes[depths[at]][0]
        if node in rescued:
            wide = canvas.width_of(one.text, _LETTERS)
            canvas.band(left - 5, row - PILL / 2 - 5, wide + 10, PILL + 24, canvas.theme.tints["relaxed"])
        visit = visits.get(node)
        ends[node] = canvas.pill(left, row, one.text, one.status, _hover(step, node, visit), most=_LETTERS)
        if visit is not None:
            canvas.write(ends[node] + 3, row, str(visit.turn), weight=600)
            _tank(canvas, visit, left, row)
        if one.parent in ends:
            beside = 0.0 if one.parent not in visits else 5 + text_width(str(visits[one.parent].turn), SMALL)
            start = (ends[one.parent] + beside, rows[place[one.parent]])
            canvas.edge(start, max(start[0], lanes[depths[at] - 1][1]), (left, row), one.status)
    return lanes[-1][1], max(row + tall / 2 for row, tall in zip(rows, heights, strict=True)) + 6


def _shown(step: Step) -> list[int]:
    """The first nodes whose parents are shown, and the whole path."""
    shown = {0, *step.path}
    for node, one in enumerate(step.nodes):
        if len(shown) < _MOST and one.parent in shown:
            shown.add(node)
    return sorted(shown)


def _weighed(visits: dict[int, _Visit], node: int) -> bool:
    return node in visits and visits[node].weight is not None


def _tank(canvas: Canvas, visit: _Visit, left: float, row: float) -> None:
    if visit.weight is None:
        return
    look, below = canvas.theme, row + PILL / 2 + 6
    canvas.bar(left + 2, below, _FULL, Line("all of it: weight 1", look.line, "solid"))
    fill = look.rejected if visit.outcome == "failed" else look.accepted
    name = "weight, failed" if visit.outcome == "failed" else "weight, kept"
    canvas.bar(left + 2, below, _FULL * visit.weight, Line(name, fill, "solid"))
    if visit.draw is not None:
        canvas.bar(left + 2 + _FULL * visit.draw, below + 4, 2.5, Line("coin", look.ink, "solid"))


def _hover(step: Step, node: int, visit: _Visit | None) -> str:
    one = step.nodes[node]
    what = "never reached: the walk had ended" if visit is None else f"visit {visit.turn}: {visit.said}"
    if node == 0 and visit is None:
        what = "the last committed token: nobody judges it"
    return f"<b>{safe(visible(one.text))}</b><br>{what}<br>q {number(one.q, 3)}, p {number(one.p, 3)}"
