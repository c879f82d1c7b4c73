"""Record the app's opening runs again, each from its file NAME.json.

The file has the fields of a request under `request`, and under `rehearsals` the number of runs before it that fill a method's
memory. Each run is decoded several times, and the one with the median speed-up is kept, so that neither luck nor load decides.

The file may list further prompts under `beside`. They are decoded in one batch, whose cache is compacted every `every` rounds;
the trace is that of the first row. A row waits for the whole round, so a speed-up over a single run means nothing, and the run
of median time is kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from specviz.commands.console import ProgressLine, print_message, print_result
from specviz.errors import BadInput
from specviz.figures.theme import number
from specviz.paths import ASSETS
from specviz.pipeline.request import Memory, Request
from specviz.trace import store
from specviz.trace.schema import Trace

FOLDER = ASSETS / "traces"
KNOWN = {field.name for field in fields(Request)}
Decode = Callable[..., Trace]


def execute(options: argparse.Namespace) -> int:
    """Record the runs one by one; each is written even if a later one fails."""
    folder: Path = options.folder or FOLDER
    if options.times < 1:
        raise BadInput("--times is the number of decodings per run; give a whole number of at least 1.")
    entries = _requested_entries(folder, options.names)
    from specviz.pipeline.runner import run as decode

    for name, entry in entries.items():
        trace = _median(_in_batch if "beside" in entry else partial(_once, decode), name, entry, options.times)
        store.write(trace, folder / f"{name}{store.SUFFIX}.gz")
        assert (end := trace.end) is not None
        metrics, speed = end.metrics, "in a batch"
        if gain := metrics.get("speedup"):
            speed = f"{number(gain)}× measured, {number(metrics.get('predicted_speedup'))}× predicted"
        same = ", the same text as the baseline" if end.baseline and end.baseline.equal else ""
        print_result(f"{name}: τ {number(metrics['tau'])} over {metrics['steps']} passes, {speed}{same}")
    return 0


def _requested_entries(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Read the entries of the named runs, or of all. Raises BadInput for an unknown name or an invalid entry."""
    known = {}
    for file in sorted(folder.glob("*.json")):
        try:
            entry = json.loads(file.read_text(encoding="utf-8"))
            request = entry.get("request")
        except (ValueError, AttributeError) as problem:
            raise BadInput(f"{file} does not describe a recorded run: {problem}.") from None
        if request is None:
            continue
        if strange := sorted(set(request) - KNOWN):
            raise BadInput(f"{file} has unknown request fields: {', '.join(strange)}. Correct them.")
        beside, every = entry.get("beside", [""]), entry.get("every", None if "beside" in entry else 0)
        listed = isinstance(beside, list) and beside and all(isinstance(prompt, str) for prompt in beside)
        if not listed or not isinstance(every, int):
            raise BadInput(f"{file} needs a list of prompts under `beside` and a number of rounds under `every`.")
        known[file.stem] = entry
    if missing := [name for name in names if name not in known]:
        raise BadInput(f"No file describes a run {missing[0]!r}; the runs are: {', '.join(known) or 'none'}.")
    return {name: known[name] for name in names or known}


def _median(decode: Callable[[Mapping[str, Any]], Trace], name: str, entry: Mapping[str, Any], times: int) -> Trace:
    """Decode ``times`` runs, each with its own memory, and return the one with the median speed-up.

    Runs without a speed-up are ordered by their time. Raises BadInput if a run failed.
    """
    runs = []
    for turn in range(times):
        print_message(f"{name}: {turn + 1} of {times}")
        trace = decode(entry)
        if trace.end is None or trace.end.reason not in ("eos", "budget", "context"):
            why = trace.end.message or trace.end.reason if trace.end else "it has no end"
            raise BadInput(f"The run {name} did not finish: {why}.")
        speed = trace.end.metrics.get("speedup") or -float(sum(step.time.total for step in trace.steps))
        runs.append((speed, turn, trace))
    return sorted(runs)[(len(runs) - 1) // 2][2]


def _once(decode: Decode, entry: Mapping[str, Any]) -> Trace:
    memory = Memory()
    with ProgressLine() as progress:
        for _ in range(entry.get("rehearsals", 0)):
            decode(memory=memory, progress=progress, **entry["request"])
        return decode(memory=memory, progress=progress, **{"baseline": True, **entry["request"]})


def _in_batch(entry: Mapping[str, Any]) -> Trace:
    """Decode the entry and its prompts ``beside`` in one batch, with consecutive seeds; return the trace of its own row."""
    from specviz.pipeline.batch import traces
    from specviz.pipeline.runner import prepare

    memory, request = Memory(), entry["request"]
    prompts = (request["prompt"], *entry["beside"])
    rows = [Request(**{**request, "prompt": one, "seed": request.get("seed", 0) + row}) for row, one in enumerate(prompts)]
    with ProgressLine() as progress:
        ready = [prepare(row, memory, progress) for row in rows]
    return traces(ready, entry["every"])[0]
