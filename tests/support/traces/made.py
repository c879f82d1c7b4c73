"""A small run written out by hand, so that tests can say what stands in a figure."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from msgspec.structs import replace

from specviz.trace import metrics
from specviz.trace.schema import Baseline, Bonus, Divergence, End, Nanoseconds, Node, Note, Run, Sampling, Step, Trace
from tests.support.traces.recordings import said

MS = 1_000_000

HOSTILE = (
    '<img src=x onerror="window.hacked=1">',
    "<a href='javascript:window.hacked=1'>x</a>",
    "<script>window.hacked=1</script>",
    "</span><h1>big</h1>",
    "$\\alpha$",
    "%{x}%{customdata}",
    "&lt;b&gt;",
    "\u202eevil",
    "\x1b[31m",
    "\ud800",
    "\x00",
    "",
)
TREE = Step(
    index=3,
    position=12,
    nodes=(
        Node(-1, 1, " the", status="root"),
        Node(0, 2, " sky", 0.8, 0.9, "accepted"),
        Node(0, 3, " sea", 0.15, 0.05, "rejected"),
        Node(1, 4, " is", 0.6, 0.7, "accepted"),
        Node(1, 5, " was", 0.3, 0.004, "rejected"),
        Node(2, 6, " foam", 0.5, 0.2, "skipped"),
        Node(2, 7, "\n", 0.1, None, "pruned"),
    ),
    path=(1, 3),
    bonus=Bonus(3, 8, " blue", 0.55),
    emitted=(2, 4, 8),
    pieces=(" sky", " is", " blue"),
    rule="greedy",
    time=Nanoseconds(draft=10 * MS, verify=50 * MS, judge=MS, commit=MS, host=2 * MS),
    draft_calls=1,
    verified=5,
    padded=6,
)
SILENT = replace(
    TREE, nodes=TREE.nodes[:1], path=(), bonus=Bonus(0, 8, " blue", 0.55), emitted=(8,), pieces=(" blue",), verified=0
)


def trace(
    *steps: Step,
    plain_ms: float | None = 40,
    method: str = "prompt_lookup",
    apart: Divergence | None = None,
    ended: bool = True,
    prompt: tuple[str, ...] = (),
) -> Trace:
    """A run of these steps, numbered anew. ``plain_ms``: what a token of its baseline took, None for no baseline."""
    steps = tuple(replace(step, index=index) for index, step in enumerate(steps))
    where = ("cpu", "float32", "eager")
    run = Run("text", "a-target", method, "A method", "exact", {}, Sampling(), *where, "".join(prompt), prompt, 64)
    if not ended:
        return Trace(run, steps)
    output, text = said(steps)
    plain = None if plain_ms is None else Baseline((int(plain_ms * MS),) * len(output), 0, apart is None, apart)
    return Trace(run, steps, End("budget", output, text, 0, metrics.summarise(steps, "budget", 0, plain), "", plain))


def labels(figure: go.Figure) -> list[str]:
    """Every text drawn inside a figure, in drawing order."""
    return [text for trace in figure.data if trace.text is not None for text in _each(trace.text)]


def positions(figure: go.Figure) -> dict[str, float]:
    """How far right every text of a figure stands."""
    told = [one for one in figure.data if one.text is not None]
    return {label: x for one in told for label, x in zip(one.text, one.x, strict=True)}


def hovers(figure: go.Figure) -> list[str]:
    """Every hover text of a figure."""
    return [text for trace in figure.data if trace.hovertext is not None for text in _each(trace.hovertext)]


def _each(text: Any) -> list[str]:
    return [text] if isinstance(text, str) else list(text)


def hostile(trace: Trace) -> Trace:
    """The trace with every text in it replaced by something that wants to be markup."""
    steps = []
    for step in trace.steps:
        nodes = tuple(replace(node, text=HOSTILE[place % len(HOSTILE)]) for place, node in enumerate(step.nodes))
        bonus = step.bonus and Bonus(step.bonus.parent, step.bonus.token, HOSTILE[step.index % len(HOSTILE)], step.bonus.p)
        pieces = tuple(HOSTILE[(step.index + place) % len(HOSTILE)] for place in range(len(step.pieces)))
        notes = tuple(Note(note.type, _spoilt(note.data)) for note in step.notes)
        steps.append(replace(step, nodes=nodes, bonus=bonus, pieces=pieces, notes=notes))
    prompt = tuple(HOSTILE[place % len(HOSTILE)] for place in range(len(trace.run.prompt_pieces)))
    run = replace(trace.run, prompt_pieces=prompt, title=HOSTILE[0], method=HOSTILE[0])
    return replace(trace, run=run, steps=tuple(steps))


def _spoilt(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: [HOSTILE[place % len(HOSTILE)] for place in range(len(inner))] if key == "texts" else _spoilt(inner)
            for key, inner in value.items()
        }
    return [_spoilt(one) for one in value] if isinstance(value, list) else value
