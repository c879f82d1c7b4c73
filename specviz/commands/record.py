"""Re-record the app's example runs, each described by a file NAME.json.

In the file, `request` holds the fields of a request; `rehearsals` is the number of earlier runs that fill the method's memory.
Each run is decoded several times, and the one with the median speed-up is kept.

`beside` lists prompts to decode in the same batch; `every` is the number of rounds between compactions of the cache. A batch has
no measured baseline, so of the first row's traces, the one with the median time is kept.

`check` holds Python statements that test the program in the answer. Both run in a sandbox, and the run is kept only if they
pass; `ran` names the Python version.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from specviz.commands.console import ProgressLine, print_message, print_result
from specviz.commands.program import check_program
from specviz.errors import BadInput
from specviz.figures.theme import number
from specviz.paths import ASSETS
from specviz.pipeline.request import Memory, Request
from specviz.trace import store
from specviz.trace.schema import Trace

FOLDER = ASSETS / "traces"
KNOWN = {field.name for field in fields(Request)}


class Entry(msgspec.Struct):
    """Contents of NAME.json. Without a request, this command does not record the run."""

    request: dict[str, Any] = {}
    rehearsals: int = 0
    beside: list[str] = []
    every: int = 8
    check: str = ""


def execute(options: argparse.Namespace) -> int:
    """Record the runs and write each trace as soon as the run is recorded."""
    folder: Path = options.folder or FOLDER
    entries = _requested_entries(folder, options.names)
    for name, entry in entries.items():
        runs = []
        for turn in range(options.times):
            print_message(f"{name}: {turn + 1} of {options.times}")
            trace = _in_batch(entry) if entry.beside else _once(entry)
            if not trace.end or trace.end.reason not in ("eos", "budget", "context"):
                reason = trace.end.message or trace.end.reason if trace.end else "the end record is missing"
                raise BadInput(f"The run {name} did not finish: {reason}.")
            # Sort runs without a speed-up by time.
            gain = trace.end.metrics.get("speedup") or -float(sum(step.time.total for step in trace.steps))
            runs.append((gain, turn, trace))
        trace = sorted(runs)[(len(runs) - 1) // 2][2]
        if entry.check:
            check_program("".join(piece for step in trace.steps for piece in step.pieces), entry.check)
            card = folder / f"{name}.json"
            ran = {"ran": f"Python {platform.python_version()}"}
            card.write_text(json.dumps(json.loads(card.read_text("utf-8")) | ran, indent=2, ensure_ascii=False) + "\n", "utf-8")
        store.write(trace, folder / f"{name}{store.SUFFIX}.gz")
        assert (end := trace.end)
        metrics, speed = end.metrics, "in a batch"
        if gain := metrics.get("speedup"):
            speed = f"{number(gain)}× measured, {number(metrics.get('predicted_speedup'))}× predicted"
        same = ", the same text as the baseline" if end.baseline and end.baseline.equal else ""
        print_result(f"{name}: τ {number(metrics['tau'])} over {metrics['steps']} passes, {speed}{same}")
    return 0


def _requested_entries(folder: Path, names: list[str]) -> dict[str, Entry]:
    """Return the entries of the named runs, or of all runs. Raises BadInput for an unknown name or an invalid file."""
    known = {}
    for file in sorted(folder.glob("*.json")):
        try:
            entry = msgspec.json.decode(file.read_bytes(), type=Entry)
        except msgspec.MsgspecError as problem:
            raise BadInput(f"{file} is not a valid description of a run: {problem}.") from None
        if strange := sorted(set(entry.request) - KNOWN):
            raise BadInput(f"{file} has unknown request fields: {', '.join(strange)}. Correct or remove these fields.")
        if entry.request:
            known[file.stem] = entry
    if missing := [name for name in names if name not in known]:
        raise BadInput(f"There is no run {missing[0]!r} in {folder}; the runs are: {', '.join(known) or 'none'}.")
    return {name: known[name] for name in names or known}


def _once(entry: Entry) -> Trace:
    from specviz.pipeline.runner import run as decode

    memory = Memory()
    with ProgressLine() as progress:
        for _ in range(entry.rehearsals):
            decode(memory=memory, progress=progress, **entry.request)
        return decode(memory=memory, progress=progress, **{"baseline": True, **entry.request})


def _in_batch(entry: Entry) -> Trace:
    """Decode the entry's prompt and ``beside`` as a batch, with consecutive seeds, and return the trace of the first row."""
    from specviz.pipeline.batch import traces
    from specviz.pipeline.runner import prepare

    memory, request = Memory(), entry.request
    prompts = (request["prompt"], *entry.beside)
    rows = [Request(**{**request, "prompt": one, "seed": request.get("seed", 0) + row}) for row, one in enumerate(prompts)]
    with ProgressLine() as progress:
        ready = [prepare(row, memory, progress) for row in rows]
    return traces(ready, entry.every)[0]
