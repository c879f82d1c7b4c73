"""Server-sent events: the only channel that brings a run's lines, live or stored, to the pages that show it.

An answer through Gradio's queue costs the server several milliseconds, on the cores that the engine uses. A line sent
this way costs a fraction of that.
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
"""Path of the events below the app's address; the run's key follows."""

EVERY_SECONDS = 0.08
"""Seconds between two reads of the store: twelve a second already look smooth; more would only add cost."""

MOST_LINES, MOST_LETTERS = 64, 400_000
"""Maximum lines and characters of one event, except for a single longer line: the server holds that much for a slow reader."""

MOST_EACH = 128
"""Maximum number of streams per address, enough for several classes behind one router."""

BACK_MS = 2000
"""Milliseconds after which a browser reconnects if its stream broke off or was refused."""

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(eq=False)
class EventStreams:
    """Events of the runs in ``store``. An event's id is the number of the next line. Used from several threads."""

    store: TraceStore
    every: float = EVERY_SECONDS
    each: int = MOST_EACH
    _live: set[str] = field(default_factory=set)
    _open: Counter[str] = field(default_factory=Counter)

    def begin(self) -> str:
        """Return the key of a new run, to which lines may be added until its end."""
        key = self.store.new()
        self._live.add(key)
        return key

    def end(self, key: str) -> None:
        """Mark this run as over; its readers get the remaining lines, then their streams end."""
        self._live.discard(key)

    async def read(self, key: str, start: int, address: str = "") -> AsyncIterator[bytes]:
        """Yield events with the lines from ``start`` on, finally ``over``, with the reason if the run is no longer stored."""
        yield f"retry: {BACK_MS}\n\n".encode()
        if self._open[address] >= self.each:
            return
        self._open[address] += 1
        reason = ""
        try:
            while True:
                live = key in self._live  # checked before reading, so that no last line is missed
                if lines := self._some(key, start):
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

    def _some(self, key: str, start: int) -> list[str]:
        """The next lines that fit into one event."""
        lines = self.store.lines(key, start, start + MOST_LINES)
        return lines[: max(1, sum(size <= MOST_LETTERS for size in accumulate(map(len, lines))))]


def route(streams: EventStreams, address: Callable[[Scope], str]) -> Route:
    """Route of the events, starting at the line in the query or after the browser's last event. A run's key is known only to
    the page that began it."""

    async def tail(request: Request) -> Response:
        start = request.headers.get("last-event-id") or request.query_params.get("from", "0")
        if not (start.isascii() and start.isdecimal() and len(start) < 10):
            return Response(status_code=400)
        events = streams.read(request.path_params["key"], int(start), address(request.scope))
        return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)

    return Route(f"/{PATH}/{{key}}", tail)
