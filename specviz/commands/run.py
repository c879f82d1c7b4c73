"""Decode a prompt with a method. Prints the text as tokens are accepted, then the metrics, or a JSON object."""

from __future__ import annotations

import argparse
import base64
import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from specviz.commands import on_vllm
from specviz.commands.console import ProgressLine, Stopping, print_message, read_text
from specviz.errors import BadInput, shown
from specviz.pipeline.request import Request
from specviz.trace import store
from specviz.trace.collect import Collector, closed
from specviz.trace.schema import End, Run

BROKEN = 1
OUT_OF_MEMORY = 2
STOPPED = 130


def execute(options: argparse.Namespace) -> int:
    """Decode the prompt. The trace is written even if the run fails or is stopped."""
    settings = request_of(options, prompt=read_text(options.prompt_file) if options.prompt is None else options.prompt)
    for out in filter(None, (options.out, options.picture, options.compare)):  # check before decoding for minutes
        try:
            is_folder, is_writable = out.is_dir(), out.parent.is_dir() and os.access(out.parent, os.W_OK)
        except OSError as problem:
            raise BadInput(f"{shown(out)} cannot be written to: {problem.strerror}.") from None
        if is_folder:
            raise BadInput(f"{out} is a folder; name a file in it.")
        if not is_writable:
            raise BadInput(f"{out} cannot be written: {out.parent} is not a writable folder.")
    if options.engine == "vllm":
        for name in ("picture", *(() if options.compare else ("dtype", "device", "tier", "baseline"))):
            if getattr(options, name) != getattr(Request, name, None):
                raise BadInput(f"--{name} has no effect on a run on vLLM; omit this option.")
        return on_vllm.execute(options, settings)
    for name in ("server", "traces", "compare"):
        if getattr(options, name):
            raise BadInput(f"--{name} requires --engine vllm; add this option or omit --{name}.")
    from specviz.commands.live import TerminalView
    from specviz.pipeline.runner import stream

    progress, recording, live = ProgressLine(), Collector(), TerminalView(quiet=options.json)
    try:
        with Stopping() as stopping:
            for event in stream(settings, cancel=stopping.event, progress=progress):
                progress.close()
                if options.picture and isinstance(event, Run) and event.modality != "image":
                    raise BadInput(f"{event.target} does not generate images; omit --picture.")
                recording.add(event)
                stopping.started = True
                live.take(event)
    except BaseException as problem:
        if recording.run and not recording.end:
            stopped = isinstance(problem, KeyboardInterrupt | BrokenPipeError)
            message = "" if stopped else f"{type(problem).__name__}: {problem}"[:1000]
            recording.end = closed(recording.trace, "cancelled" if stopped else "error", message)
        raise
    finally:
        progress.close()
        if options.out and recording.run:
            store.write(recording.trace, options.out)
        if options.picture and recording.end and recording.end.picture:
            options.picture.write_bytes(base64.b64decode(recording.end.picture))
    live.finish(recording.trace, options.out)
    assert recording.end
    failed = status([recording.end], stopping.event.is_set())
    if recording.end.busy and not failed:
        print_message(recording.end.busy)
    return failed


def status(ends: Sequence[End], stopped: bool) -> int:
    """Print a message on a stop or on failures, and return the exit status."""
    if stopped:
        print_message("Stopped early.")
        return STOPPED
    broken = [end for end in ends if end.reason in ("error", "out_of_memory")]
    for message in dict.fromkeys(end.message or f"The run ended early: {end.reason.replace('_', ' ')}." for end in broken):
        print_message(message)
    if any(end.reason == "out_of_memory" for end in broken):
        return OUT_OF_MEMORY
    return BROKEN if broken else 0


def request_of(options: argparse.Namespace, **own: Any) -> Request:
    """Return a request whose fields take the values of the options of the same names. ``own``: values of other fields."""
    given = {field.name: getattr(options, field.name) for field in fields(Request) if field.name in options}
    return Request(**{**given, "parameters": parameters(options.param), **own})


def parameters(assignments: Sequence[str]) -> dict[str, str]:
    """Parse the ``--param`` options into parameter values by name."""
    found: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise BadInput(f"--param {assignment} does not have the form name=value.")
        if name in found:
            raise BadInput(f"--param {name} is given twice; give it once.")
        found[name] = value
    return found
