"""Access to the engine: the first run loads torch, a run on a ZeroGPU Space borrows a GPU, and a server decodes its own."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass

import gradio as gr

from specviz.engine.stop import Stop, computing
from specviz.errors import BadInput, SpecvizError
from specviz.figures.unfinished import unfinished
from specviz.interop.server import Answer, look
from specviz.pipeline.request import Memory, Request
from specviz.trace.collect import Collector, closed
from specviz.trace.schema import End, Run, Step, Trace
from specviz.ui.settings import GPU_SECONDS, LOADING_SECONDS

Event = Run | Step | End
Progress = Callable[[str, "float | None"], None]
Stream = Callable[[Request, Memory, Stop, Progress], Generator[Event, None, None]]

PUT_TOGETHER = "Its picture has the finished rows; the codes after them are squares of their mean colour."
"""Message on a stopped picture when the model that decodes its codes was lost with the GPU."""


NOT_SENT = "The server drafts as configured: the form's method, its parameters, draft and device were not sent."
SERVED = "server:"
"""Prefix of the name of a target that is a server; its address follows."""

COMPUTING = threading.Lock()
"""Held by the one thread of this process that computes. Models, their caches and their graphs belong to the process, and a
stopped run may still use them after it has left the queue."""


def local(request: Request, memory: Memory, cancel: Stop, progress: Progress) -> Generator[Event, None, None]:
    """Run in this process."""
    progress("Starting the engine", None)
    with computing(COMPUTING, progress):
        from specviz.pipeline.runner import stream

        yield from stream(request, memory=memory, cancel=cancel, progress=progress)


@dataclass(frozen=True)
class Refusal:
    """A sentence for the visitor from the process with the GPU, in which an exception would lose its message."""

    message: str


def borrowed() -> Stream:
    """Return the stream of runs on a ZeroGPU Space, each of which borrows a GPU.

    A run is in another process, so only plain data reaches it. A stop takes effect here, between two events, and a visitor's
    memory of earlier runs (n-gram stores, successor matrices) does not reach the run. A third process fetches the models first,
    so that progress is visible and no GPU sits idle. A run ends by itself before the Space's limit.
    """
    limit = (float(GPU_SECONDS - LOADING_SECONDS), f"A GPU is lent for {GPU_SECONDS} s, part of which loading the model took.")
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
        progress("Waiting for a GPU; then the model is loaded on it", None)
        events, collector = on_gpu(request), Collector()
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
                    if collector.end is None:  # a closed stream yields none
                        yield stopped(collector.trace, cancel.why)
                    return
        except gr.Error as error:
            # The Space's report that the visitor's quota is used up, or that no GPU is free.
            raise SpecvizError(str(error.message)) from None

    return run


def fetch(request: Request, progress: Progress) -> None:
    """Fetch the target, and a draft model from the catalogue, unless they ship with the project. Raises ModelUnavailable."""
    from specviz.models.hub.catalog import ShippedFile, resolve
    from specviz.models.hub.in_subprocess import load_in_subprocess

    for name, anything in ((request.target, True), (request.draft or "", False)):
        entry = resolve(name).entry if name else None
        if entry is not None and isinstance(entry.source, ShippedFile):
            continue
        if entry is not None or (name and anything):
            progress(f"Looking for {name}", None)
            load_in_subprocess(name, progress)


def stopped(trace: Trace, limit: str) -> End:
    """Return the end record of a run stopped after these steps: by its time ``limit`` or, if that is empty, by the visitor.

    Its prefill time and the model that decodes codes are lost with the GPU, so a picture consists of the rows received.
    """
    picture = unfinished(trace)
    message = " ".join(part for part in (limit, PUT_TOGETHER if picture else "") if part)
    return closed(trace, "time_limit" if limit else "cancelled", message, picture)


def with_servers(stream: Stream, allowed: tuple[str, ...]) -> Stream:
    """Return ``stream``, extended by the allowed servers."""
    if not allowed:
        return stream

    def run(request: Request, memory: Memory, cancel: Stop, progress: Progress) -> Generator[Event, None, None]:
        if not request.target.startswith(SERVED):
            return stream(request, memory, cancel, progress)
        url = request.target.removeprefix(SERVED)
        if url not in allowed:
            raise BadInput(f"{url} is not one of the servers that this app may ask.")
        return _asked(url, request, cancel, progress)

    return run


def _asked(url: str, request: Request, cancel: Stop, progress: Progress) -> Generator[Event, None, None]:
    """Yield the events of a server's answer; the end record adds the server's counters over that time."""
    progress(f"Asking {url}", None)
    server = look(url, cancel=cancel)
    progress(f"Waiting for {server.title}", None)
    answer = Answer(server, request, cancel)
    cancel.begin()
    for event in answer.events():
        if isinstance(event, End):
            end = event  # the last counters arrive after it
        else:
            yield event.replace(warnings=(*event.warnings, NOT_SENT)) if isinstance(event, Run) else event
    notes = [note for step in answer.trace.steps for note in step.notes if note.type == "served_counters"] if answer.trace else []
    for sample in [sample for note in notes for sample in note.data["samples"]][-1:]:
        rates = ", ".join(f"{kept / sample['drafts']:.2f}" for kept in sample["accepted"])
        words = f"Accepted by position in the draft, from its counters over all requests that it served meanwhile: {rates}."
        end = end.replace(message=f"{end.message} {words}".strip())
    yield end
