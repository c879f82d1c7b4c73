"""Server-sent events: the lines of a live run, straight to the pages that watch it.

An answer that goes through Gradio's queue costs the server several milliseconds, and the engine waits for them on the same
cores. A line that goes this way costs a small part of that. Nothing depends on it: a page whose way here is blocked gets
the same lines from the queue.
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
"""Where the page asks, below the app's own address; the run's key follows."""

EVERY_SECONDS = 0.08
"""Between two looks at the store: twelve a second read as motion."""

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Tails:
    """Which runs are being written, and how many pages read the end of each. Used from several threads."""

    def __init__(self, store: TraceStore, every: float = EVERY_SECONDS) -> None:
        self.store = store
        self.every = every
        self._readers: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin(self, key: str) -> None:
        """Lines of this run may come from now on."""
        with self._lock:
            self._readers[key] = 0

    def end(self, key: str) -> None:
        """The run is over; who reads it gets what is left and is then sent away."""
        with self._lock:
            self._readers.pop(key, None)

    def going(self, key: str) -> bool:
        """Whether more may come."""
        with self._lock:
            return key in self._readers

    def watched(self, key: str) -> bool:
        """Whether a page reads this run's end."""
        with self._lock:
            return self._readers.get(key, 0) > 0

    async def read(self, key: str, start: int) -> AsyncIterator[str]:
        """Server-sent events of the lines from ``start`` on: one event for all that came since the last, then ``over``."""
        self._count(key, 1)
        try:
            while True:
                going = self.going(key)  # asked before reading, so that no last line is missed
                lines = self.store.lines(key, start)
                if lines:
                    start += len(lines)
                    yield "".join(f"data: {line}\n" for line in lines) + "\n"
                if not going:
                    break
                await asyncio.sleep(self.every)
        except BadInput:
            return  # the store has let go of the run; the queue tells the page
        finally:
            self._count(key, -1)
        yield "event: over\ndata:\n\n"

    def _count(self, key: str, by: int) -> None:
        with self._lock:
            if key in self._readers:
                self._readers[key] += by


def route(tails: Tails) -> Route:
    """The address for the app. A run's key is known to the page that began it and to nobody else."""

    async def tail(request: Request) -> Response:
        key, start = request.path_params["key"], request.query_params.get("from", "0")
        if not tails.going(key) or not start.isdecimal():
            return Response(status_code=204)
        return StreamingResponse(tails.read(key, int(start)), media_type="text/event-stream", headers=HEADERS)

    return Route(f"/{PATH}/{{key}}", tail)
