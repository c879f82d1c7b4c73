"""Drafts from the last token's state: tokens a pass against the length of the text, and which half drafted each step."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.trace.lengths import measured_on
from specviz.trace.schema import Step, Trace
from specviz.views.length_curves import beside
from specviz.views.notes import Story, story
from specviz.views.theme import axis, count, figure, number, theme_of

HALVES = ("tree", "suffix")
_NAMES = {"tree": "the network's tree", "suffix": "copied from memory"}
_MOST = 240
_AROUND = 12
"""Steps on either side that a running mean is taken over."""


def last_state(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """A mark a step: how long the text was and how many tokens the pass brought; discs are trees of the network, diamonds
    copies. The line is a running mean; this step is ringed. At the right, where the length suite has measured this target:
    every method's tokens a pass from short texts to long ones, for what this step's half is made for."""
    step, note = story(trace, index, "last_state")
    look = theme_of(theme)
    found = _all(trace, index)
    made = figure(look, *_headline(step, note), width=960, height=400, key=True)
    mean = [
        sum(tokens for _, _, tokens in near) / len(near)
        for near in (found[max(0, place - _AROUND) : place + _AROUND + 1] for place in range(len(found)))
    ]
    made.add_scatter(
        x=[length for length, _, _ in found], y=[round(one, 3) for one in mean], mode="lines", name="running mean, τ",
        line={"color": look.ink, "width": 2}, hoverinfo="skip",
    )  # fmt: skip
    for half in HALVES:
        marks = [(length, tokens) for length, one, tokens in found if one == half]
        if not marks:
            continue
        disc = half == "tree"
        made.add_scatter(
            x=[length for length, _ in marks], y=[tokens for _, tokens in marks], mode="markers", name=_NAMES[half],
            marker={"symbol": "circle" if disc else "diamond", "size": 8 if disc else 10,
                    "color": look.accepted if disc else look.draft, "line": {"width": 1, "color": look.paper}},
            hovertext=[f"{count(tokens, 'token')} at a text of {length}, {_NAMES[half]}" for length, tokens in marks],
            hoverinfo="text",
        )  # fmt: skip
    made.add_scatter(
        x=[note.whole("length")], y=[len(step.emitted)], mode="markers", name="this step", hoverinfo="skip",
        marker={"symbol": "circle-open", "size": 19, "color": look.ink, "line": {"width": 2}},
    )  # fmt: skip
    made.update_xaxes(axis(look, "tokens of text before the draft", grid=False))
    made.update_yaxes(axis(look, "tokens a pass", rangemode="tozero"))
    curves, half = measured_on(trace.run.target), note.word("half", HALVES)
    if curves is not None:
        here = next((tau for (length, _, _), tau in zip(found, mean, strict=True) if length == note.whole("length")), None)
        point = (note.whole("length"), len(step.emitted) if here is None else here)
        beside(made, look, curves, "copies" if half == "suffix" else "answers", point)
    return made


def _all(trace: Trace, index: int) -> list[tuple[int, str, int]]:
    """(length, half, tokens) of the steps with a note, those nearest to ``index`` where there are many."""
    first = max(0, min(index - _MOST // 2, len(trace.steps) - _MOST))
    found = []
    for step in trace.steps[first : first + _MOST]:
        for note in step.notes:
            if note.type == "last_state" and step.cut is None:
                told = Story(note.data, f"note last_state of step {step.index + 1}")
                found.append((told.whole("length"), told.word("half", HALVES), len(step.emitted)))
    return found


def _headline(step: Step, note: Story) -> tuple[str, str]:
    half, score, threshold = note.word("half", HALVES), note.maybe_number("score"), note.maybe_number("threshold")
    name = f"Step {step.index + 1} · {_NAMES[half]}: {count(len(step.nodes) - 1, 'node')}, {len(step.path)} accepted"
    probe = " and that of a [SPEC] token behind it" if note.data.get("probed") is True else ""
    said = f"of {count(note.whole('length'), 'token')} of text the network sees the last one's state{probe}, nothing else"
    if threshold is None:
        return name, said
    if score is None:
        return name, f"{said}; the memories are asked first"
    if half == "tree" and score >= threshold:
        return name, f"the memories know nothing to draft here; {said}"
    word = "enough" if half == "suffix" else "too little"
    return name, f"the memories expected {number(score)} right tokens, {word} beside the threshold of {number(threshold)}"
