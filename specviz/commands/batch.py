"""Decode several prompts as a batch on one target, and write one trace per prompt."""

from __future__ import annotations

import argparse

from specviz.commands.console import ProgressLine, Stopping, print_result, read_prompts
from specviz.commands.run import request_of, status
from specviz.errors import BadInput
from specviz.figures.theme import count, number
from specviz.pipeline.request import Memory
from specviz.trace import store

MOST = 8


def execute(options: argparse.Namespace) -> int:
    prompts = read_prompts(options.prompts, MOST)
    requests = [request_of(options, prompt=prompt, seed=options.seed + row) for row, prompt in enumerate(prompts)]
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BadInput(f"The folder {options.out} cannot be created: {problem.strerror}.") from None
    from specviz.pipeline.batch import traces
    from specviz.pipeline.runner import prepare

    memory = Memory()
    with ProgressLine() as progress:
        ready = [prepare(request, memory, progress) for request in requests]
    with Stopping() as stopping:
        stopping.started = True
        row_traces = traces(ready, options.every, stopping.event)
    ends = []
    for row, trace in enumerate(row_traces, start=1):
        path = options.out / f"row-{row}{store.SUFFIX}"
        store.write(trace, path)
        assert trace.end is not None
        ends.append(trace.end)
        tokens, tau = count(len(trace.end.output_ids), "token"), trace.end.metrics["tau"]
        accepted = "" if tau is None else f", τ {number(tau)}"
        print_result(f"{path}: {tokens}, steps: {len(trace.steps)}{accepted}, {trace.end.reason}")
    return status(ends, stopping.event.is_set())
