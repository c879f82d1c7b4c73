"""Decode several prompts in one batch on one target, and write a trace for each.

Rows share a cache but accept different numbers of tokens per round.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.commands.console import ProgressLine, Stopping, print_result, read_prompts
from specviz.commands.run import parameters, status
from specviz.errors import BadInput
from specviz.figures.theme import count, number
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.pipeline.request import Memory, Request
from specviz.trace import store

HELP = "decode several prompts together, with a trace for each"
MOST = 8


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--prompts", type=Path, required=True, metavar="F", help="a file with one prompt per line, up to eight")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=f"a folder for row-1{store.SUFFIX} and so on")
    parser.add_argument("--method", default="reader", metavar="M", help="a name from the list of `methods`")
    parser.add_argument("--target", default=DEFAULT_TEXT_TARGET, metavar="T", help="the model that verifies")
    parser.add_argument("--every", type=int, default=8, metavar="R", help="rounds between two sweeps of the cache, 0 for none")
    parser.add_argument("--max-new-tokens", type=int, default=96, metavar="N", help="the maximum number of tokens per row")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first row's seed; each further row adds 1")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="a method's parameter")


def execute(options: argparse.Namespace) -> int:
    """Decode, write the traces, and print each row's acceptance length."""
    own = parameters(options.param)
    common_fields = {"target": options.target, "max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    requests = [
        Request(options.method, prompt, seed=options.seed + row, parameters=own, **common_fields)
        for row, prompt in enumerate(read_prompts(options.prompts, MOST))
    ]
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BadInput(f"{options.out} cannot be made a folder for traces: {problem.strerror}.") from None
    from specviz.pipeline.batch import traces
    from specviz.pipeline.runner import prepare

    progress, memory = ProgressLine(), Memory()
    ready = [prepare(request, memory, progress) for request in requests]
    progress.close()
    with Stopping() as stopping:
        stopping.started = True
        row_traces = traces(ready, options.every, stopping.event)
    for row, trace in enumerate(row_traces, start=1):
        path = options.out / f"row-{row}{store.SUFFIX}"
        store.write(trace, path)
        assert trace.end is not None
        tokens, tau = count(len(trace.end.output_ids), "token"), trace.end.metrics["tau"]
        accepted = "" if tau is None else f", τ {number(tau)}"
        print_result(f"{path}: {tokens} in {len(trace.steps)} passes{accepted}, {trace.end.reason}")
    return status([trace.end for trace in row_traces if trace.end is not None], stopping.requested)
