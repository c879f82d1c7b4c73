"""Decode a prompt with a method; print the text as it is accepted, then the numbers, or one JSON object."""

from __future__ import annotations

import argparse
import base64
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from specviz.commands import on_vllm
from specviz.commands.console import ProgressLine, Stopping, print_message, read_text
from specviz.errors import BadInput, shown
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.pipeline.request import Request
from specviz.trace import store
from specviz.trace.collect import Collector, closed
from specviz.trace.schema import End, Run

HELP = "decode a prompt and show the run"
BROKEN = 1
OUT_OF_MEMORY = 2
STOPPED = 130


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--method", required=True, metavar="M", help="a name from the list of `methods`")
    parser.add_argument("--target", default=DEFAULT_TEXT_TARGET, metavar="T", help="the model that verifies")
    parser.add_argument("--draft", metavar="D", help="the model or heads that draft, several separated by commas")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument("--prompt-file", metavar="F", help="a file with the prompt, - for standard input")
    parser.add_argument("--image", metavar="F", help="the picture of the prompt, for a target that reads pictures")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it stands, without a chat template")
    help_text = "the maximum number of tokens; a picture has as many codes as its grid"
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help=help_text)
    help_text = "0 takes the likeliest token; by default 0 for text and 1 for images"
    parser.add_argument("--temperature", type=float, metavar="T", help=help_text)
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="keep the likeliest tokens up to this mass")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="keep the K likeliest tokens, 0 for all")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same text if the tree's size is stated")
    kinds = ("auto", "float64", "float32", "bfloat16", "float16")
    parser.add_argument("--dtype", default="auto", choices=kinds, help="the models' number format")
    parser.add_argument(
        "--device",
        default="auto",
        help="the models' device: auto, cpu, cuda, cuda:1; for text also several: cuda:all, cuda:0,cuda:1",
    )
    parser.add_argument("--tier", default="auto", choices=("auto", "eager", "graph"), help="eager passes or captured graphs")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="a method's parameter")
    parser.add_argument("--baseline", action="store_true", help="also decode one token at a time, for the speed-up")
    parser.add_argument("--guidance", type=float, metavar="S", help="the strength of an image's guidance, 1 for none")
    parser.add_argument("--picture", metavar="F", help="write the picture of an image run to this PNG file")
    parser.add_argument("--out", metavar="F", help=f"write the trace to this file ({store.SUFFIX})")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    on_vllm.arguments(parser)


def execute(options: argparse.Namespace) -> int:
    """Decode, and write the trace to ``--out`` however the run ends."""
    settings = request_of(options)
    for out in filter(None, (options.out, options.picture, options.compare)):
        _check_out(out)
    if options.engine == "vllm":
        return on_vllm.execute(options, settings)
    on_vllm.refuse_without_vllm(options)
    from specviz.commands.live import TerminalView
    from specviz.pipeline.runner import stream

    progress, recording, live = ProgressLine(), Collector(), TerminalView(quiet=options.json)
    try:
        with Stopping() as stopping:
            for event in stream(settings, cancel=stopping.event, progress=progress):
                progress.close()
                if options.picture and isinstance(event, Run) and event.modality != "image":
                    raise BadInput(f"{event.target} draws no picture to write; omit --picture.")
                recording.add(event)
                stopping.started = True
                live.take(event)
    except BaseException as problem:
        if recording.run is not None and recording.end is None:
            stopped = isinstance(problem, KeyboardInterrupt | BrokenPipeError)
            message = "" if stopped else f"{type(problem).__name__}: {problem}"[:1000]
            recording.end = closed(recording.trace, "cancelled" if stopped else "error", message)
        raise
    finally:
        progress.close()
        if options.out and recording.run is not None:
            store.write(recording.trace, options.out)
        if options.picture and recording.end is not None and recording.end.picture:
            Path(options.picture).write_bytes(base64.b64decode(recording.end.picture))
    live.finish(recording.trace, options.out)
    assert recording.end is not None
    failed = status([recording.end], stopping.requested)
    if recording.end.busy and not failed:
        print_message(recording.end.busy)
    return failed


def status(ends: Sequence[End], stopped: bool) -> int:
    """Report a stop, or each failure once; return the exit status."""
    if stopped:
        print_message("Stopped; the results so far are kept.")
        return STOPPED
    broken = [end for end in ends if end.reason in ("error", "out_of_memory")]
    for message in dict.fromkeys(end.message or f"The run ended early: {end.reason.replace('_', ' ')}." for end in broken):
        print_message(message)
    if any(end.reason == "out_of_memory" for end in broken):
        return OUT_OF_MEMORY
    return BROKEN if broken else 0


def request_of(options: argparse.Namespace) -> Request:
    """Return the request with the values of these options, which have the names of its fields."""
    given = {field.name: getattr(options, field.name) for field in fields(Request) if field.name in options}
    if options.prompt is None:
        given["prompt"] = read_text(options.prompt_file)
    return Request(**given, parameters=parameters(options.param))


def parameters(assignments: Sequence[str]) -> dict[str, str]:
    """Parse the assignments of ``--param`` to a method's parameters by name."""
    found: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise BadInput(f"--param {assignment} does not have the form name=value.")
        if name in found:
            raise BadInput(f"--param {name} is given twice; give it once.")
        found[name] = value
    return found


def _check_out(out: str) -> None:
    """Raise BadInput now, not after minutes of decoding, if the trace cannot be written."""
    folder = Path(out).parent
    try:
        is_folder, is_writable = Path(out).is_dir(), folder.is_dir() and os.access(folder, os.W_OK)
    except OSError as problem:
        raise BadInput(f"{shown(out)} cannot be written to: {problem.strerror}.") from None
    if is_folder:
        raise BadInput(f"{out} is a folder; name a file in it for the trace.")
    if not is_writable:
        raise BadInput(f"The trace cannot be written to {out}: {folder} is not a writable folder.")
