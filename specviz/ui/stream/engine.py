"""Access to the engine: torch is loaded with the first run, and on a ZeroGPU Space the run borrows a GPU."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.engine.stop import Stop, computing, stop_reason
from specviz.errors import SpecvizError
from specviz.figures.unfinished import unfinished
from specviz.pipeline.request import Memory, Request
from specviz.trace.collect import Collector, closed
from specviz.trace.schema import End, Run, Step, Trace
from specviz.ui.settings import GPU_SECONDS, LOADING_SECONDS

Event = Run | Step | End
Progress = Callable[[str, "float | None"], None]
Stream = Callable[[Request, Memory, threading.Event, Progress], Generator[Event, None, None]]

PUT_TOGETHER = "Its picture has the rows that were finished; codes behind them are squares of their mean colour."
"""What a stopped picture is, where the GPU has gone with the model that decodes codes."""


COMPUTING = threading.Lock()
"""Held by the one thread of this process that computes: models, and the caches and graphs that belong to them, are of the
process, and a run that was stopped may use them longer than it has its place in line."""


def local(request: Request, memory: Memory, cancel: threading.Event, progress: Progress) -> Generator[Event, None, None]:
    """A run in this process."""
    progress("Starting the engine", None)
    with computing(COMPUTING, progress):
        from specviz.pipeline.runner import stream

        yield from stream(request, memory=memory, cancel=cancel, progress=progress)


@dataclass(frozen=True)
class Refusal:
    """A sentence for the visitor that crosses from the process with the GPU; an exception would lose its words there."""

    message: str


def borrowed() -> Stream:
    """A run on a GPU that a ZeroGPU Space lends for its length.

    It happens in another process, so only plain data crosses: a stop is noticed here, between two events, and what
    earlier runs of a visitor left (n-gram stores, successor matrices) does not reach it. What has to be fetched is fetched
    before, by yet another process, so that progress is seen and no GPU waits for it. A run ends by itself before the Space
    breaks it off.
    """
    limit = (float(GPU_SECONDS - LOADING_SECONDS), f"A GPU is lent for {GPU_SECONDS} s, and loading the model took its part.")
    lend = importlib.import_module("spaces").GPU(duration=GPU_SECONDS)

    @lend
    def on_gpu(request: Request) -> Iterator[Event | Refusal]:
        from specviz.pipeline.runner import stream

        try:
            yield from stream(request, cancel=Stop(lambda: limit))
        except SpecvizError as error:
            yield Refusal(str(error))

    def run(request: Request, memory: Memory, cancel: threading.Event, progress: Progress) -> Generator[Event, None, None]:
        fetch(request, progress)
        progress("Waiting for a GPU; then the model is loaded on it", None)
        try:
            yield from _until_stopped(on_gpu(request), cancel)
        except gr.Error as error:
            # How a Space says that the visitor's quota is used up, or that no GPU is free.
            raise SpecvizError(str(error.message)) from None

    return run


def fetch(request: Request, progress: Progress) -> None:
    """Bring the target here, and a draft model of the catalogue; what ships with the project is here. Raises ModelUnavailable."""
    from specviz.models.hub.catalog import ShippedFile, resolve
    from specviz.models.hub.in_subprocess import load_in_subprocess

    for name, anything in ((request.target, True), (request.draft or "", False)):
        entry = resolve(name).entry if name else None
        if entry is not None and isinstance(entry.source, ShippedFile):
            continue
        if entry is not None or (name and anything):
            progress(f"Looking for {name}", None)
            load_in_subprocess(name, progress)


def _until_stopped(events: Any, cancel: threading.Event) -> Iterator[Event]:
    """The events, and an end of our own making when the run is stopped, because a closed run writes none."""
    collector = Collector()
    for event in events:
        if isinstance(event, Refusal):
            raise SpecvizError(event.message)
        if isinstance(event, Run) and isinstance(cancel, Stop):
            cancel.begin()
        collector.add(event)
        yield event
        if cancel.is_set():
            events.close()
            if collector.end is None:
                yield stopped(collector.trace, stop_reason(cancel))
            return


def stopped(trace: Trace, limit: str) -> End:
    """The end of a run after these steps, by its time limit or a visitor's wish.

    How long its prefill took stayed behind with the GPU, and so did the model that could decode the codes: a picture is put
    together from the rows that came.
    """
    picture = unfinished(trace)
    message = " ".join(part for part in (limit, PUT_TOGETHER if picture else "") if part)
    return closed(trace, "time_limit" if limit else "cancelled", message, picture)


def choose(zero_gpu: bool) -> Stream:
    """The way this copy of the app runs."""
    return borrowed() if zero_gpu else local
