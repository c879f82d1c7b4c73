"""Chrome trace JSON of a run for the Perfetto UI: one track per phase, and the autoregressive run on the same clock.

Perfetto does not draw overlapping events of one track, so every lane has its own track number in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specviz.trace.schema import PHASES, Baseline, Step, Trace

RUN, PLAIN = 1, 2
"""Process numbers: this run, and the target's own autoregressive run."""
STEPS = 1
TOKENS = 11
TRACKS = {"steps": STEPS, **{phase: STEPS + 1 + place for place, phase in enumerate(PHASES)}}

Event = dict[str, Any]


def events(trace: Trace) -> list[Event]:
    """Return names, then complete ("X") and counter ("C") events; ``ts`` is microseconds since the prefill began, ``dur`` in
    microseconds.

    A step records only the sum of each phase, so the phases are drawn one after the other, in the order of PHASES.
    """
    trace_events = [*_names(RUN, f"{trace.run.title} on {trace.run.target}", TRACKS)]
    trace_events += _run(trace)
    baseline = None if trace.end is None else trace.end.baseline
    if baseline is not None:
        trace_events += _names(PLAIN, f"One by one on {trace.run.target}", {"tokens": TOKENS})
        trace_events += _plain(baseline)
    return trace_events


def document(trace: Trace) -> dict[str, Any]:
    """Return the JSON object that Perfetto opens."""
    run = trace.run
    metadata = {
        "method": run.method, "target": run.target, "draft": run.draft, "device": run.device, "dtype": run.dtype,
        "tier": run.tier, "machine": run.machine, "recorded_at": run.recorded_at,
    }  # fmt: skip
    return {"traceEvents": events(trace), "displayTimeUnit": "ms", "otherData": metadata}


def _names(process: int, name: str, tracks: dict[str, int]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for lane, track in tracks.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": lane}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": track, "args": {"sort_index": track}}


def _span(process: int, track: int, name: str, start: int, length: int, args: Event | None = None) -> Iterator[Event]:
    """Yield one event, unless its length is 0: nanoseconds in, microseconds out."""
    if length > 0:
        yield {
            "ph": "X", "cat": "specviz", "name": name, "pid": process, "tid": track, "ts": start / 1000,
            "dur": length / 1000, "args": args or {},
        }  # fmt: skip


def _count(process: int, at: int, emitted: int) -> Event:
    return {"ph": "C", "name": "output tokens", "pid": process, "tid": 0, "ts": at / 1000, "args": {"tokens": emitted}}


def _run(trace: Trace) -> Iterator[Event]:
    clock = 0 if trace.end is None else trace.end.prefill_ns
    yield from _span(RUN, STEPS, "prefill", 0, clock)
    emitted = 0
    yield _count(RUN, clock, emitted)
    for step in trace.steps:
        yield from _step(step, clock)
        clock += step.time.total
        emitted += len(step.emitted)
        yield _count(RUN, clock, emitted)


def _step(step: Step, clock: int) -> Iterator[Event]:
    arguments = {
        "accepted": step.accepted, "emitted": len(step.emitted), "text": "".join(step.pieces),
        "verified": step.verified, "padded": step.padded, "draft_calls": step.draft_calls, "rule": step.rule,
        "cut": step.cut,
    }  # fmt: skip
    yield from _span(RUN, STEPS, f"step {step.index}", clock, step.time.total, arguments)
    for phase in PHASES:
        spent = getattr(step.time, phase)
        yield from _span(RUN, TRACKS[phase], phase, clock, spent, {"step": step.index})
        clock += spent


def _plain(baseline: Baseline) -> Iterator[Event]:
    clock = baseline.prefill_ns
    yield from _span(PLAIN, TOKENS, "prefill", 0, clock)
    yield _count(PLAIN, clock, 0)
    for place, spent in enumerate(baseline.token_ns):
        yield from _span(PLAIN, TOKENS, f"token {place}", clock, spent)
        clock += spent
        yield _count(PLAIN, clock, place + 1)
