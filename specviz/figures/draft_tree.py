"""Draft tree of one step: every drafted token with q, p and verdict, left to right by depth, and the bonus token."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from specviz.figures.canvas import PILL, Canvas, Line, drawn, text_width
from specviz.figures.theme import SMALL, TEXT, count, number, safe, theme_of, visible
from specviz.figures.tidy import centres, columns
from specviz.figures.verdicts import BONUS, JUDGED
from specviz.palette import LABELS
from specviz.trace.schema import PRUNED, Node, Step

ROOMY = 40
"""Up to so many nodes the labels are larger and judged nodes carry their numbers in print."""
MANY = 40
"""More pruned nodes than this are folded into counts: what was never sent must not bury what was."""
_MOST_LETTERS = 18
_COUNT = 26.0
"""Room beside a pill for the count of what is folded below it."""


@dataclass(frozen=True)
class _Leaf:
    """A node as it is drawn. ``parent`` is an index among the drawn; ``hidden`` counts what is folded below it."""

    parent: int
    depth: int
    text: str
    status: str
    hover: str
    q: float | None = None
    p: float | None = None
    hidden: int = 0

    @property
    def judged(self) -> bool:
        return self.status in JUDGED


def draft_tree(step: Step, theme: str = "light", *, most: int = 200) -> go.Figure:
    """The tree of one step. What is too much is folded into counts: what nobody judged beyond ``most``, and many pruned nodes."""
    leaves = _leaves(step, most)
    roomy = len(leaves) <= ROOMY
    canvas = Canvas(theme_of(theme), TEXT if roomy else SMALL)
    width, height = _draw(canvas, leaves, roomy)
    drafted = len(step.nodes) - 1
    folded = sum(leaf.hidden for leaf in leaves)
    within = "" if step.accepted == len(step.path) else f", {step.accepted} of them before the end"
    title = f"Step {step.index + 1} · {count(drafted, 'drafted token')}, {len(step.path)} accepted{within}"
    if not drafted:
        title = f"Step {step.index + 1} · the drafter proposed nothing"
    said = visible("".join(step.pieces), 60)
    subtitle = f"rule: {step.rule.replace('_', ' ')} · adds “{safe(said)}”" if drafted else f"plain decoding: adds “{safe(said)}”"
    if step.cut:
        subtitle += f" · cut short by {step.cut}"
    if folded:
        subtitle += f" · {count(folded, 'token')} that nobody judged are folded away"
    return drawn(canvas, title, subtitle, width, height)


def _leaves(step: Step, most: int) -> list[_Leaf]:
    """What is drawn, parents first."""
    kept = _kept(step, most)
    drawn_at = {node: place for place, node in enumerate(kept)}
    hidden = [0] * len(kept)
    for node, one in enumerate(step.nodes):
        if node not in drawn_at:
            above = one.parent
            while above not in drawn_at:
                above = step.nodes[above].parent
            hidden[drawn_at[above]] += 1
    depths = step.depths
    leaves = []
    for place, node in enumerate(kept):
        one, depth = step.nodes[node], depths[node]
        hover = _hover(node, one, depth)
        leaves.append(_Leaf(drawn_at.get(one.parent, -1), depth, one.text, one.status, hover, one.q, one.p, hidden[place]))
    if step.bonus is not None:
        bonus = step.bonus
        lines = (
            f"<b>{safe(visible(bonus.text))}</b>",
            f"{LABELS[BONUS]}, from the {'residual' if bonus.source == 'residual' else 'target'}",
            f"target p {number(bonus.p, 4)} · token {bonus.token}",
        )
        leaves.append(_Leaf(drawn_at[bonus.parent], depths[bonus.parent] + 1, bonus.text, BONUS, "<br>".join(lines)))
    return leaves


def _kept(step: Step, most: int) -> list[int]:
    """Every judged node, then others in drafting order as long as there is room and their parent is kept."""
    judged = {0, *step.path, *(node for node, one in enumerate(step.nodes) if one.status in JUDGED)}
    for node in sorted(judged, reverse=True):
        above = step.nodes[node].parent
        while above >= 0 and above not in judged:
            judged.add(above)
            above = step.nodes[above].parent
    kept = set(judged)
    folded = sum(one.status == PRUNED for one in step.nodes) > MANY
    for node, one in enumerate(step.nodes):
        if len(kept) >= most:
            break
        if one.parent in kept and not (folded and one.status == PRUNED):
            kept.add(node)
    return sorted(kept)


def _hover(node: int, one: Node, depth: int) -> str:
    """The verdict on a node and the numbers behind it; why it fell so is a sentence of the stage."""
    lines = [f"<b>{safe(visible(one.text))}</b>", LABELS[one.status]]
    if node:
        q = "none (chosen, not drawn)" if one.q is None else number(one.q, 4)
        lines.append(f"drafter q {q} · target p {number(one.p, 4)}")
    tested = [(name, value) for name, value in (("threshold", one.threshold), ("draw", one.draw)) if value is not None]
    if tested:
        lines.append(" · ".join(f"{name} {number(value, 4)}" for name, value in tested))
    if one.grid is not None:
        lines.append(f"row {one.grid[0]}, column {one.grid[1]}")
    lines.append(f"node {node} · depth {depth} · token {one.token}")
    return "<br>".join(lines)


def _draw(canvas: Canvas, leaves: list[_Leaf], roomy: bool) -> tuple[float, float]:
    """Put the tree on the canvas. Gives back the width and height of what was drawn."""
    pitch = PILL + 7 if roomy else PILL
    heights = [pitch + (_extra(leaf, roomy)) for leaf in leaves]
    widths = [_width(canvas, leaf, roomy) for leaf in leaves]
    depths = [leaf.depth for leaf in leaves]
    tight = columns(depths, widths, 0.0)[-1][1]
    lanes = columns(depths, widths, min(90.0, max(26.0, (920 - tight) / max(max(depths), 1))))
    middle = centres([leaf.parent for leaf in leaves], heights)
    rows = [high - _extra(leaf, roomy) / 2 for leaf, high in zip(leaves, middle, strict=True)]
    ends: list[float] = []
    for leaf, row in zip(leaves, rows, strict=True):
        left = lanes[leaf.depth][0]
        ends.append(canvas.pill(left, row, leaf.text, leaf.status, leaf.hover, most=_MOST_LETTERS))
        if leaf.hidden:
            canvas.write(ends[-1] + 3, row, f"+{leaf.hidden}", weight=600)
        if leaf.judged:
            _numbers(canvas, leaf, left, row, roomy)
        if leaf.parent >= 0:
            start = (ends[leaf.parent] + (_COUNT if leaves[leaf.parent].hidden else 0), rows[leaf.parent])
            canvas.edge(start, max(start[0], lanes[leaf.depth - 1][1]), (left, row), leaf.status)
    return lanes[-1][1], max(high + tall / 2 for high, tall in zip(middle, heights, strict=True)) + 4


def _extra(leaf: _Leaf, roomy: bool) -> float:
    """Room under a judged pill for its bars, and in small trees for its numbers."""
    if not leaf.judged:
        return 0.0
    return 26.0 if roomy else 8.0


def _width(canvas: Canvas, leaf: _Leaf, roomy: bool) -> float:
    wide = canvas.width_of(leaf.text, _MOST_LETTERS) + (_COUNT if leaf.hidden else 0)
    return max(wide, text_width(_print(leaf), SMALL) if leaf.judged and roomy else 0)


def _print(leaf: _Leaf) -> str:
    return f"q {number(leaf.q)}  p {number(leaf.p)}" if leaf.q is not None else f"p {number(leaf.p)}"


def _numbers(canvas: Canvas, leaf: _Leaf, left: float, row: float, roomy: bool) -> None:
    """q and p of a judged node: two bars on one scale, and in small trees the figures in print."""
    full = 64.0
    below = row + (PILL if roomy else PILL - 3) / 2 + 4
    if leaf.q is not None:
        canvas.bar(left + 2, below, full * leaf.q, Line("q drafter", canvas.theme.draft, "solid"))
    if leaf.p is not None:
        canvas.bar(left + 2, below + 4, full * leaf.p, Line("p target", canvas.theme.accepted, "solid"))
    if roomy:
        canvas.write(left - 1, below + 14, _print(leaf), mono=True)
