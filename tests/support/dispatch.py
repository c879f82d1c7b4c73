"""What a step asks of a GPU, counted without one: aten calls and synchronisations of every method by phase.

``python -m tests.support.dispatch [METHOD ...]`` prints them.

Runs take the code paths of a GPU, graphs included, on a device whose numbers lie on the CPU (see ``emulated_cuda.py``). A
step that captured a graph is left out, as are notes: what is counted is a warmed-up step as it is timed.
"""

from __future__ import annotations

import collections
import importlib.util
import itertools
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from specviz.bench.kit import Bencher, PictureQuestion
from specviz.bench.report import Report, Row
from specviz.bench.suites import STATE_SPACE_TARGET, held_out_scenes
from specviz.engine import loop
from specviz.engine.clock import Stopwatch
from specviz.engine.loop import Decoding
from specviz.engine.tiers import WIDTHS
from specviz.errors import SpecvizError
from specviz.methods.registry import all_methods
from specviz.models.hub.catalog import DEFAULT_IMAGE_TARGET, DEFAULT_TEXT_TARGET, DEFAULT_VISION_TARGET
from specviz.models.text.load import load_causal_lm
from specviz.prompts import pictures
from tests.support.emulated_cuda import Counts, EmulatedCuda, emulated_cuda
from tests.support.kernels import pass_kernels

PHASES = ("draft", "verify", "judge", "commit")
TEMPERATURES = (0.0, 1.0)
TOKENS = 24
PROMPT = "Write three sentences about a rainy day in a small town, and end with a question."
CALLS = 60
"""Calls outside graphs in a greedy step of a text method."""
PICTURE_CALLS = 120
"""The same in a step of a picture."""
MOST_WAITS = 4
"""Synchronisations a step, of any method."""
STATED: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3, depth 5, match": ("eagle3", {"depth": 5, "rule": "match"}),
    "eagle3, depth 5, 24 nodes": ("eagle3", {"depth": 5, "nodes": 24}),
}
"""Trees of a stated size are counted too, as what pays is another one on every machine."""


@dataclass
class StepCounts:
    """One step's counts by phase."""

    phases: dict[str, Counts] = field(default_factory=lambda: {phase: Counts() for phase in PHASES})
    rows: int = 1
    """Rows of the target's pass, padding included."""

    @property
    def captures(self) -> int:
        """Graphs that were captured in it."""
        return sum(counts.captures for counts in self.phases.values())

    def total(self, name: str) -> int:
        """One count of the whole step."""
        return sum(getattr(counts, name) for counts in self.phases.values())


@contextmanager
def counted_steps(device: EmulatedCuda) -> Iterator[list[StepCounts]]:
    """The steps that are made meanwhile: phases end where the loop's own clock says."""
    steps: list[StepCounts] = []

    class CountingClock(Stopwatch):
        def start(self, carried: int = 0) -> None:
            super().start(carried)
            device.fresh()
            steps.append(StepCounts())

        def mark(self, phase: str) -> None:
            super().mark(phase)
            steps[-1].phases[phase] += device.fresh()

    with mock.patch.object(loop, "Stopwatch", CountingClock):
        yield steps


def count(device: EmulatedCuda, decoding: Decoding) -> list[StepCounts]:
    """The steps of a run that captured nothing. Raises what ended the run, and a SpecvizError where too few were left."""
    decoding.ignore_eos = True
    with counted_steps(device) as steps:
        widths = [step.padded for step in decoding.steps()]
    for step, rows in zip(steps, widths, strict=False):
        step.rows = rows
    if decoding.outcome.reason == "error":
        raise SpecvizError(decoding.outcome.message)
    steady = [step for step in steps[1:] if not step.captures]
    if not steady:
        raise SpecvizError("Every step captured a graph; decode more tokens.")
    return steady


def row(name: str, steps: Sequence[StepCounts], compiled: Mapping[int, tuple[int, int]]) -> Row:
    """A method's mean calls and most synchronisations a step, by phase; ``compiled`` are the kernels of a compiled layer and
    pass by rows."""
    cells = {"method": name, "calls": f"{statistics.mean(step.total('calls') for step in steps):.0f}"}
    cells |= {phase: f"{statistics.mean(step.phases[phase].calls for step in steps):.0f}" for phase in PHASES}
    cells["launches"] = f"{statistics.mean(step.total('launches') for step in steps):.0f}"
    cells["graphs"] = f"{statistics.mean(step.total('replays') for step in steps):.1f}"
    cells["inside"] = f"{statistics.mean(step.total('captured') for step in steps):.0f}"
    passes = [compiled[step.rows] for step in steps if step.rows in compiled]
    if passes:
        cells["kernels a layer"], cells["kernels a pass"] = (f"{max(counts)}" for counts in zip(*passes, strict=True))
    waits = [step.total("waits") for step in steps]
    by_phase = ", ".join(f"{phase} {most}" for phase in PHASES if (most := max(step.phases[phase].waits for step in steps)))
    cells["synchronisations"] = f"{statistics.mean(waits):.1f}, at most {max(waits)}" + (f" ({by_phase})" if by_phase else "")
    return Row(
        name,
        max(waits),
        "synchronisations a step",
        MOST_WAITS,
        at_most=True,
        cells=cells,
        table="a step, by method and temperature",
    )


@dataclass(frozen=True)
class Subject:
    """A target, what it is asked, and the methods that are counted on it."""

    target: str
    prompt: str | PictureQuestion
    methods: tuple[str, ...]
    note: str = ""


def subjects(target: str, methods: Sequence[str]) -> Iterator[Subject]:
    """Every method on a target of each kind that it drafts for, of ``methods`` where some are named."""
    wanted = {name: method for name, method in all_methods().items() if not methods or name in methods}
    kinds: dict[str, tuple[str, Callable[[], str | PictureQuestion]]] = {
        "text": (target, lambda: PROMPT),
        "state space": (STATE_SPACE_TARGET, lambda: PROMPT),
        "vision_language": (DEFAULT_VISION_TARGET, lambda: held_out_scenes()[0]),
        "image": (DEFAULT_IMAGE_TARGET, lambda: pictures(1)[0]),
    }
    for kind, (named, prompt) in kinds.items():
        modality = "text" if kind == "state space" else kind
        of_state_space = kind == "state space"
        names = tuple(
            name
            for name, method in wanted.items()
            if modality in method.modality and (named in method.targets if method.targets else not of_state_space)
        )
        if names:
            note = {"vision_language": " on a picture", "image": " of a picture"}.get(kind, "")
            yield Subject(named, prompt(), names, note)


def run(report: Report, target: str, methods: Sequence[str]) -> None:
    """Every method on each kind of target, at each temperature. With Triton, kernels of compiled passes of the text target."""
    compiled = {}
    if importlib.util.find_spec("triton"):
        config = load_causal_lm(target, "float32", "cpu").model.config
        compiled = {rows: pass_kernels(config, rows) for rows in WIDTHS if rows <= 64}
    with emulated_cuda() as device:
        for subject in subjects(target, methods):
            bench = Bencher(subject.target, TOKENS, {"device": "cuda", "tier": "graph", "dtype": "float32"})
            chosen = {f"{name}{subject.note}": (name, dict[str, Any]()) for name in subject.methods}
            chosen |= {title: asked for title, asked in STATED.items() if asked[0] in subject.methods and not subject.note}
            for (title, (name, parameters)), temperature in itertools.product(chosen.items(), TEMPERATURES):
                title = f"{title}, T = {temperature:g}"
                try:
                    ready = bench.prepared(name, subject.prompt, temperature, parameters=parameters)
                    if subject.note == " of a picture":  # the graphs of its blocks are those of the picture before
                        collections.deque(ready.decoding(ready.compose(), 0).steps(), maxlen=0)
                    steps = count(device, ready.decoding(ready.compose(), 0))
                except SpecvizError as problem:
                    report.add(Row(title, None, "synchronisations a step", MOST_WAITS, detail=str(problem)))
                    continue
                report.add(row(title, steps, compiled if subject.target == target else {}))
                reasons = sum((counts.reasons for step in steps for counts in step.phases.values()), Counter())
                report.say("    " + ", ".join(f"{why} {times / len(steps):.1f}" for why, times in reasons.most_common(8)))


if __name__ == "__main__":
    methods = tuple(sys.argv[1:])
    counted = Report("dispatch", {"target": DEFAULT_TEXT_TARGET}, say=print)
    run(counted, DEFAULT_TEXT_TARGET, methods)
    print(counted.as_table())
