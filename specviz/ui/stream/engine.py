"""Event streams of a run: in this process, on a GPU borrowed from a ZeroGPU Space, or on an inference server."""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

import gradio as gr

from specviz.engine.stop import Stop, computing
from specviz.errors import BadInput, SpecvizError
from specviz.figures.unfinished import unfinished
from specviz.interop.server import Answer, identify
from specviz.pipeline.request import Memory, Request
from specviz.trace.collect import Collector, closed
from specviz.trace.schema import End, Run, Step, Trace
from specviz.ui.settings import GPU_SECONDS, LOADING_SECONDS

Event = Run | Step | End
Progress = Callable[[str, "float | None"], None]
Stream = Callable[[Request, Memory, Stop, Progress], Generator[Event, None, None]]

PUT_TOGETHER = "The picture shows the finished rows; below, each cell has the mean colour of its code."
"""Message on the picture of a stopped run after the GPU with the image decoder was returned."""


NOT_SENT = "The server's own configuration decides how it drafts; the method, parameters, draft and device were not sent."
SERVED = "server:"
"""Prefix of a target that is a server, followed by the server's address."""

COMPUTING = threading.Lock()
"""Lock of the thread that computes. A stopped run may still use the models after leaving the queue."""


def local(request: Request, memory: Memory, cancel: Stop, progress: Progress) -> Generator[Event, None, None]:
    """Yield the events of a run in this process. The first run imports torch."""
    progress("Starting the engine", None)
    with computing(COMPUTING, progress):
        from specviz.pipeline.runner import stream

        yield from stream(request, memory=memory, cancel=cancel, progress=progress)


@dataclass(frozen=True)
class Refusal:
    """Error message from the GPU process, where an exception would lose the message."""

    message: str


def borrowed(took: deque[float]) -> Stream:
    """Return a stream that runs each request in a GPU process of a ZeroGPU Space. ``took`` receives the seconds of each run.

    Only plain data reaches the GPU process, so a run has no memory of earlier runs, and a stop takes effect between two events.
    Models are fetched before a GPU is borrowed. A run ends before the Space's time limit.
    """
    limit = (float(GPU_SECONDS - LOADING_SECONDS), f"The Space lends a GPU for {GPU_SECONDS} s, including loading time.")
    lend = importlib.import_module("spaces").GPU(duration=GPU_SECONDS)

    @lend
    def on_gpu(request: Request) -> Generator[Event | Refusal, None, None]:
        from specviz.pipeline.runner import stream

        try:
            yield from stream(request, cancel=Stop(lambda: limit))
        except SpecvizError as error:
            yield Refusal(str(error))

    def run(request: Request, memory: Memory, cancel: Stop, progress: Progress) -> Generator[Event, None, None]:
        fetch(request, progress)
        progress("Waiting for a GPU to load the model", None)
        events, collector, begun = on_gpu(request), Collector(), time.monotonic()
        try:
            for event in events:
                if isinstance(event, Refusal):
                    raise SpecvizError(event.message)
                if isinstance(event, Run):
                    cancel.begin()
                collector.add(event)
                yield event
                if cancel.is_set():
                    events.close()
                    if not collector.end:
                        yield stopped(collector.trace, cancel.reason)
                    return
            took.append(time.monotonic() - begun)
        except gr.Error as error:
            # The visitor's quota is used up, or no GPU is free.
            raise SpecvizError(str(error.message)) from None

    return run


def fetch(request: Request, progress: Progress) -> None:
    """Fetch the target and, if in the catalogue, the draft model. Raises ModelUnavailable if fetching fails."""
    from specviz.models.hub.catalog import resolve
    from specviz.models.hub.in_subprocess import load_in_subprocess

    for name, anything in ((request.target, True), (request.draft or "", False)):
        entry = resolve(name).entry if name else None
        # A shipped file has all of a model, unless it has a base.
        if not entry and name and anything or entry and getattr(entry.source, "base", True):
            progress(f"Looking for {name}", None)
            load_in_subprocess(name, progress)


def stopped(trace: Trace, limit: str) -> End:
    """Return the end record of a run that was stopped after the steps of ``trace``.

    ``limit``: message of the time limit, or empty if the visitor stopped the run. An image consists of the rows received so far.
    """
    picture = unfinished(trace)
    message = " ".join(filter(None, (limit, picture and PUT_TOGETHER)))
    return closed(trace, "time_limit" if limit else "cancelled", message, picture)


def with_servers(stream: Stream, allowed: tuple[str, ...]) -> Stream:
    """Return a stream that sends requests for ``server:`` targets to the ``allowed`` servers and others to ``stream``."""
    if not allowed:
        return stream

    def run(request: Request, memory: Memory, cancel: Stop, progress: Progress) -> Generator[Event, None, None]:
        if not request.target.startswith(SERVED):
            return stream(request, memory, cancel, progress)
        url = request.target.removeprefix(SERVED)
        if url not in allowed:
            raise BadInput(f"This app is not allowed to connect to {url}; choose another target.")
        return _asked(url, request, cancel, progress)

    return run


def _asked(url: str, request: Request, cancel: Stop, progress: Progress) -> Generator[Event, None, None]:
    """Yield the events of a run on a server. The end record includes the server's acceptance rates."""
    progress(f"Connecting to {url}", None)
    server = identify(url, cancel=cancel)
    progress(f"Waiting for {server.title}", None)
    answer = Answer(server, request, cancel)
    cancel.begin()
    for event in answer.events():
        if isinstance(event, End):
            end = event  # yielded last, after the final counters
        else:
            yield event.replace(warnings=(*event.warnings, NOT_SENT)) if isinstance(event, Run) else event
    notes = [note for step in answer.trace.steps for note in step.notes if note.type == "served_counters"] if answer.trace else []
    for sample in [sample for note in notes for sample in note.data["samples"]][-1:]:
        rates = ", ".join(f"{kept / sample['drafts']:.2f}" for kept in sample["accepted"])
        words = f"Acceptance rate by draft position, from the server's counters for all requests during the run: {rates}."
        end = end.replace(message=f"{end.message} {words}".strip())
    yield end
