"""Server-sent events that deliver the lines of live and stored runs to the page.

Each update through Gradio's queue would cost the server several milliseconds of CPU time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import accumulate

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Scope

from specviz.errors import BadInput
from specviz.trace.store import TraceStore

PATH = "specviz/tail"
"""Path of the event streams, followed by the key of a run."""

EVERY_SECONDS = 0.08
"""Interval of the events in seconds; twelve events per second look smooth."""

MOST_LINES, MOST_LETTERS = 64, 400_000
"""Maximum number of lines and characters in one event. A single line may be longer."""

MOST_EACH = 128
"""Maximum number of streams per address, enough for several classes behind one router."""

BACK_MS = 2000
"""Time in milliseconds after which a browser reconnects."""

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(eq=False)
class EventStreams:
    """Event streams of the runs in ``store``. The id of an event is the index of the next line. Thread-safe."""

    store: TraceStore
    every: float = EVERY_SECONDS
    each: int = MOST_EACH
    _live: set[str] = field(default_factory=set)
    _open: Counter[str] = field(default_factory=Counter)

    def begin(self) -> str:
        """Create a live run in the store and return the key."""
        key = self.store.new()
        self._live.add(key)
        return key

    def end(self, key: str) -> None:
        """Mark a run as over. Streams end after the remaining lines."""
        self._live.discard(key)

    async def read(self, key: str, start: int, address: str = "") -> AsyncIterator[bytes]:
        """Yield events with the lines from ``start`` on, then ``over``, with an error if the run is no longer stored."""
        yield f"retry: {BACK_MS}\n\n".encode()
        if self._open[address] >= self.each:
            return
        self._open[address] += 1
        reason = ""
        try:
            while True:
                live = key in self._live  # before reading, so that the last lines are not missed
                if found := self.store.lines(key, start, start + MOST_LINES):
                    lines = found[: max(1, sum(size <= MOST_LETTERS for size in accumulate(map(len, found))))]
                    start += len(lines)
                    event = f"id: {start}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"
                    yield event.encode("utf-8", "replace")
                elif not live:
                    break
                await asyncio.sleep(self.every if live else 0)
        except BadInput as error:
            reason = str(error)
        finally:
            self._open -= Counter([address])
        yield f"event: over\ndata: {reason}\n\n".encode()


def route(streams: EventStreams, address: Callable[[Scope], str]) -> Route:
    """Return the route of the event streams. A stream starts after the browser's last event or at the query's ``from``."""

    async def tail(request: Request) -> Response:
        start = request.headers.get("last-event-id") or request.query_params.get("from", "0")
        if not (start.isascii() and start.isdecimal() and len(start) < 10):
            return Response(status_code=400)
        events = streams.read(request.path_params["key"], int(start), address(request.scope))
        return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)

    return Route(f"/{PATH}/{{key}}", tail)
