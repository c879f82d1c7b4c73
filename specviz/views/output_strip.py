"""The output as text, every token marked by how it came to be: HTML that carries no script and no untrusted markup."""

from __future__ import annotations

from specviz.trace.schema import ACCEPTED, RELAXED, Step, Trace
from specviz.views.theme import MONO, SANS, Theme, markup, theme_of
from specviz.views.verdicts import BONUS, look

_UNDERLINE = {ACCEPTED: "solid", RELAXED: "double", BONUS: "dotted"}


def output_strip(trace: Trace, theme: str = "light", *, step: int | None = None) -> str:
    """The text so far with a key. ``step`` frames the tokens of one step and pales what comes after it."""
    seen = theme_of(theme)
    present: dict[str, None] = {}
    spans = []
    for one in trace.steps:
        for place, piece in enumerate(one.pieces):
            status = origin(one, place)
            present[status] = None
            spans.append(_span(one, piece, status, seen, step))
    key = " ".join(
        f'<span style="{_mark(status, seen)}margin-right:10px">{markup(look(status, seen).label)}</span>'
        for status in present
    )
    body = f"font:14.5px/1.85 {markup(MONO)};white-space:pre-wrap;overflow-wrap:anywhere;color:{seen.ink}"
    foot = f"font:12px/1.8 {markup(SANS)};color:{seen.mute};margin-top:8px"
    inner = f'<div style="{body}">{"".join(spans)}</div><div style="{foot}">{key}</div>'
    return f'<div class="specviz-strip" style="background:{seen.paper}">{inner}</div>'


def origin(step: Step, place: int) -> str:
    """How the token at ``place`` of a step's output came to be: accepted, relaxed or bonus."""
    if place >= len(step.path):
        return BONUS
    return RELAXED if step.nodes[step.path[place]].status == RELAXED else ACCEPTED


def _mark(status: str, seen: Theme) -> str:
    return f"background:{seen.tints[status]};border-bottom:2px {_UNDERLINE[status]} {look(status, seen).line};"


def _span(one: Step, piece: str, status: str, seen: Theme, current: int | None) -> str:
    style = _mark(status, seen)
    if status == RELAXED:
        style = style.replace("2px", "4px")
    if current is not None and one.index == current:
        style += f"outline:2px solid {seen.ink};"
    if current is not None and one.index > current:
        style += "opacity:.35;"
    title = f"step {one.index + 1}: {look(status, seen).label}"
    return f'<span style="{style}" title="{markup(title)}">{markup(piece)}</span>'
