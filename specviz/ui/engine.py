"""How the page reaches the engine: torch is loaded with the first run, and on a ZeroGPU Space the run borrows a GPU."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator

from specviz.request import Memory, Request
from specviz.trace.schema import End, Run, Step

Event = Run | Step | End
Progress = Callable[[str, "float | None"], None]
Stream = Callable[[Request, Memory, threading.Event, Progress], Iterator[Event]]

GPU_SECONDS = 60
"""Most seconds that one run may hold a borrowed GPU."""


def local(request: Request, memory: Memory, cancel: threading.Event, progress: Progress) -> Iterator[Event]:
    """A run in this process."""
    progress("Starting the engine", None)
    from specviz.run import stream

    return stream(request, memory=memory, cancel=cancel, progress=progress)


def borrowed() -> Stream:
    """A run on a GPU that a ZeroGPU Space lends for its length.

    It happens in another process, so only plain data crosses: a stop is noticed here, between two events, and what
    earlier runs of a visitor left (n-gram stores, successor matrices) does not reach it.
    """
    lend = importlib.import_module("spaces").GPU(duration=GPU_SECONDS)

    @lend
    def on_gpu(request: Request) -> Iterator[Event]:
        from specviz.run import stream

        yield from stream(request)

    def run(request: Request, memory: Memory, cancel: threading.Event, progress: Progress) -> Iterator[Event]:
        progress("Waiting for a GPU", None)
        events = on_gpu(request)
        for event in events:
            yield event
            if cancel.is_set():
                events.close()
                return

    return run


def choose(zero_gpu: bool) -> Stream:
    """The way this copy of the app runs."""
    return borrowed() if zero_gpu else local
