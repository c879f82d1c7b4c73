"""Decode several prompts in common rounds on one target, and write a trace for each.

Rows share a cache and advance at their own pace.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from specviz.commands.console import ProgressLine, say, tell
from specviz.commands.run import BROKEN, OUT_OF_MEMORY, STOPPED
from specviz.commands.stopping import Stopping
from specviz.commands.text_file import read_text
from specviz.errors import BadInput
from specviz.figures.theme import count, number
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.pipeline.request import Memory, Request
from specviz.trace import store
from specviz.trace.schema import End

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
    parameters = dict(assignment.split("=", 1) if "=" in assignment else (assignment, "") for assignment in options.param)
    common_fields = {"target": options.target, "max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    requests = [
        Request(options.method, prompt, seed=options.seed + row, parameters=parameters, **common_fields)
        for row, prompt in enumerate(read(options.prompts))
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
        say(f"{path}: {tokens} in {len(trace.steps)} passes{accepted}, {trace.end.reason}")
    if stopping.requested:
        tell("Stopped; what there is so far is kept.")
        return STOPPED
    return _broken([trace.end for trace in row_traces if trace.end is not None])


def _broken(ends: Sequence[End]) -> int:
    """Report each failure once, and return the exit status."""
    broken = [end for end in ends if end.reason in ("error", "out_of_memory")]
    for message in dict.fromkeys(end.message or f"A row ended early: {end.reason.replace('_', ' ')}." for end in broken):
        tell(message)
    if any(end.reason == "out_of_memory" for end in broken):
        return OUT_OF_MEMORY
    return BROKEN if broken else 0


def read(path: Path) -> list[str]:
    """Read the prompts of a file. Raises BadInput for none or too many."""
    prompts = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not 1 <= len(prompts) <= MOST:
        raise BadInput(f"{path} holds {count(len(prompts), 'prompt')}; give 1 to {MOST}, one a line.")
    return prompts
