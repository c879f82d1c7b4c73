"""Chrome trace JSON of a run for the Perfetto UI: one track per phase, and the autoregressive run on the same clock.

Perfetto does not draw overlapping events of one track, so every lane has its own track number in the file. Events are names
("M"), complete ("X") and counters ("C"); ``ts`` is microseconds since the prefill began, ``dur`` is in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from specviz.trace.schema import PHASES, Step, Trace

RUN, PLAIN = 1, 2
"""Process numbers: this run, and the target's own autoregressive run."""
STEPS = 1
TOKENS = 11
TRACKS = {"steps": STEPS, **{phase: STEPS + 1 + place for place, phase in enumerate(PHASES)}}

Event = dict[str, Any]
Unit = tuple[str, int, int, Event]
"""Name, nanoseconds, emitted tokens and details of a step or a token."""


def document(trace: Trace) -> dict[str, Any]:
    """Return the JSON object that Perfetto opens."""
    names = ("method", "target", "draft", "device", "dtype", "tier", "machine", "recorded_at")
    metadata = {name: getattr(trace.run, name) for name in names}
    return {"traceEvents": [*_run(trace), *_plain(trace)], "displayTimeUnit": "ms", "otherData": metadata}


def _run(trace: Trace) -> Iterator[Event]:
    yield from _names(RUN, f"{trace.run.title} on {trace.run.target}", TRACKS)
    clock = 0 if trace.end is None else trace.end.prefill_ns
    yield from _timeline(RUN, STEPS, clock, [_unit(step) for step in trace.steps])
    # A step records only the sum of each phase, so the phases are drawn one after the other, in the order of PHASES.
    for step in trace.steps:
        for phase in PHASES:
            spent = getattr(step.time, phase)
            yield from _span(RUN, TRACKS[phase], phase, clock, spent, {"step": step.index})
            clock += spent


def _unit(step: Step) -> Unit:
    about = {name: getattr(step, name) for name in ("accepted", "verified", "padded", "draft_calls", "rule", "cut")}
    tokens = len(step.emitted)
    return f"step {step.index}", step.time.total, tokens, {**about, "emitted": tokens, "text": "".join(step.pieces)}


def _plain(trace: Trace) -> Iterator[Event]:
    baseline = None if trace.end is None else trace.end.baseline
    if baseline is not None:
        yield from _names(PLAIN, f"One by one on {trace.run.target}", {"tokens": TOKENS})
        units: list[Unit] = [(f"token {place}", spent, 1, {}) for place, spent in enumerate(baseline.token_ns)]
        yield from _timeline(PLAIN, TOKENS, baseline.prefill_ns, units)


def _timeline(process: int, track: int, clock: int, units: Iterable[Unit]) -> Iterator[Event]:
    """Yield the prefill, which takes until ``clock``, and one span after the other, each with the output's length after it."""
    yield from _span(process, track, "prefill", 0, clock, {})
    written = 0
    for name, spent, tokens, about in [("", 0, 0, {}), *units]:
        yield from _span(process, track, name, clock, spent, about)
        clock += spent
        written += tokens
        yield {
            "ph": "C", "name": "output tokens", "pid": process, "tid": 0, "ts": clock / 1000, "args": {"tokens": written},
        }  # fmt: skip


def _names(process: int, name: str, tracks: dict[str, int]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for lane, track in tracks.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": lane}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": track, "args": {"sort_index": track}}


def _span(process: int, track: int, name: str, start: int, length: int, about: Event) -> Iterator[Event]:
    """Yield one event, unless its length is 0: nanoseconds in, microseconds out."""
    if length > 0:
        yield {
            "ph": "X", "cat": "specviz", "name": name, "pid": process, "tid": track, "ts": start / 1000,
            "dur": length / 1000, "args": about,
        }  # fmt: skip
