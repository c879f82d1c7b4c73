"""Server-sent events: the lines of a live run, straight to the pages that show it.

An answer through Gradio's queue costs the server several milliseconds, for which the engine waits on the same cores. A line
sent this way costs a small part of that. It is optional: a page that cannot connect here gets the same lines from the queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from specviz.errors import BadInput
from specviz.trace.store import TraceStore

PATH = "specviz/tail"
"""Path of the events below the app's address; the run's key follows."""

EVERY_SECONDS = 0.08
"""Seconds between two reads of the store: twelve a second look like motion."""

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Tails:
    """Live runs, and how many pages read the new lines of each. Used from several threads."""

    def __init__(self, store: TraceStore, every: float = EVERY_SECONDS) -> None:
        self.store = store
        self.every = every
        self._readers: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin(self, key: str) -> None:
        """Mark this run as live."""
        with self._lock:
            self._readers[key] = 0

    def end(self, key: str) -> None:
        """Mark this run as over; its readers get the remaining lines, then their streams end."""
        with self._lock:
            self._readers.pop(key, None)

    def going(self, key: str) -> bool:
        """Whether more lines may come."""
        with self._lock:
            return key in self._readers

    def watched(self, key: str) -> bool:
        """Whether a page reads this run's new lines."""
        with self._lock:
            return self._readers.get(key, 0) > 0

    async def read(self, key: str, start: int) -> AsyncIterator[str]:
        """Yield server-sent events of the lines from ``start`` on: one for all lines since the last event, finally ``over``."""
        self._count(key, 1)
        try:
            while True:
                going = self.going(key)  # checked before reading, so that no last line is missed
                lines = self.store.lines(key, start)
                if lines:
                    start += len(lines)
                    yield "".join(f"data: {line}\n" for line in lines) + "\n"
                if not going:
                    break
                await asyncio.sleep(self.every)
        except BadInput:
            return  # the store has dropped the run; the queue informs the page
        finally:
            self._count(key, -1)
        yield "event: over\ndata:\n\n"

    def _count(self, key: str, by: int) -> None:
        with self._lock:
            if key in self._readers:
                self._readers[key] += by


def route(tails: Tails) -> Route:
    """Route of the events. A run's key is known only to the page that began it."""

    async def tail(request: Request) -> Response:
        key, start = request.path_params["key"], request.query_params.get("from", "0")
        if not tails.going(key) or not start.isdecimal():
            return Response(status_code=204)
        return StreamingResponse(tails.read(key, int(start)), media_type="text/event-stream", headers=HEADERS)

    return Route(f"/{PATH}/{{key}}", tail)
