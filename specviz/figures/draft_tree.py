"""Draft tree of one step: every drafted token with q, p and verdict, left to right by depth, and the bonus token.

The layout is a tidy tree: parents centred on their children, packed without crossing. The idea is Reingold and Tilford's (1981):
subtrees are slid together until their outlines touch, depth by depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from specviz.figures.canvas import PILL, Canvas, Line, drawn, text_width
from specviz.figures.theme import SMALL, TEXT, count, escape, number, show_whitespace, theme_of
from specviz.figures.verdicts import BONUS, JUDGED
from specviz.palette import LABELS
from specviz.trace.schema import MAX_PRUNED, PRUNED, Node, Step

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
    carried = sum(node.status == PRUNED for node in step.nodes)
    unseen = step.pruned - carried
    drafted = len(step.nodes) - 1 + unseen
    tokens = count(drafted, "drafted token")
    if step.considered is None and carried >= MAX_PRUNED:
        tokens = f"{drafted} or more drafted tokens"
    folded = sum(leaf.hidden for leaf in leaves) + unseen
    within = "" if step.accepted == len(step.path) else f", {step.accepted} of them before the end"
    title = f"Step {step.index + 1} · {tokens}, {len(step.path)} accepted{within}"
    if not drafted:
        title = f"Step {step.index + 1} · the drafter proposed nothing"
    emitted_text = show_whitespace("".join(step.pieces), 60)
    rule = f"rule: {step.rule.replace('_', ' ')} ·" if drafted else "plain decoding:"
    subtitle = f"{rule} adds “{escape(emitted_text)}”"
    if step.cut:
        subtitle += f" · cut short by {step.cut}"
    if folded:
        subtitle += f" · {count(folded, 'token')} that nobody judged are folded away"
    return drawn(canvas, title, subtitle, width, height)


def _leaves(step: Step, most: int) -> list[_Leaf]:
    """What is drawn, parents first."""
    shown_nodes = _shown_nodes(step, most)
    drawn_at = {index: place for place, index in enumerate(shown_nodes)}
    hidden = [0] * len(shown_nodes)
    for index, node in enumerate(step.nodes):
        if index not in drawn_at:
            above = node.parent
            while above not in drawn_at:
                above = step.nodes[above].parent
            hidden[drawn_at[above]] += 1
    depths = step.depths
    leaves = []
    for place, index in enumerate(shown_nodes):
        node, depth = step.nodes[index], depths[index]
        hover = _hover(index, node, depth)
        leaves.append(_Leaf(drawn_at.get(node.parent, -1), depth, node.text, node.status, hover, node.q, node.p, hidden[place]))
    if step.bonus is not None:
        bonus = step.bonus
        lines = (
            f"<b>{escape(show_whitespace(bonus.text))}</b>",
            f"{LABELS[BONUS]}, from the {'residual' if bonus.source == 'residual' else 'target'}",
            f"target p {number(bonus.p, 4)} · token {bonus.token}",
        )
        leaves.append(_Leaf(drawn_at[bonus.parent], depths[bonus.parent] + 1, bonus.text, BONUS, "<br>".join(lines)))
    return leaves


def _shown_nodes(step: Step, most: int) -> list[int]:
    """Every judged node, then others in drafting order as long as there is room and their parent is kept."""
    judged = {0, *step.path, *(index for index, node in enumerate(step.nodes) if node.status in JUDGED)}
    for index in sorted(judged, reverse=True):
        above = step.nodes[index].parent
        while above >= 0 and above not in judged:
            judged.add(above)
            above = step.nodes[above].parent
    shown_nodes = set(judged)
    folded = sum(node.status == PRUNED for node in step.nodes) > MANY
    for index, node in enumerate(step.nodes):
        if len(shown_nodes) >= most:
            break
        if node.parent in shown_nodes and not (folded and node.status == PRUNED):
            shown_nodes.add(index)
    return sorted(shown_nodes)


def _hover(index: int, node: Node, depth: int) -> str:
    """The verdict on a node and the numbers behind it; why it fell so is a sentence of the stage."""
    lines = [f"<b>{escape(show_whitespace(node.text))}</b>", LABELS[node.status]]
    if index:
        q = "none (chosen, not drawn)" if node.q is None else number(node.q, 4)
        lines.append(f"drafter q {q} · target p {number(node.p, 4)}")
    tested = [(name, value) for name, value in (("threshold", node.threshold), ("draw", node.draw)) if value is not None]
    if tested:
        lines.append(" · ".join(f"{name} {number(value, 4)}" for name, value in tested))
    if node.grid is not None:
        lines.append(f"row {node.grid[0]}, column {node.grid[1]}")
    lines.append(f"node {index} · depth {depth} · token {node.token}")
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
