"""Presence of connected pages and event readers, observed in their requests.

Gradio runs an event whether or not a client reads its answers, and drops the oldest session when many new ones come. So the
streams that a page holds open are counted here. A run whose reader never connected or left releases its place, and an open
page keeps its state however many requests come from other sessions.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from gradio.context import LocalContext
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from specviz.ui.access import visitor

COMING_SECONDS = 10.0
"""Seconds that a run waits for its reader's first connection; a page connects within a moment of its request."""

LEAVING_SECONDS = 1.0
"""Seconds that a run may be without a reader that was connected before."""

MOST_CLOSED = 8
"""Number of closed pages whose state is kept."""

MOST_KEPT = 64
"""Number of open sessions per address that are protected from eviction: more than a class behind one router has."""


@dataclass(eq=False)
class Caller:
    """Sender of a request for runs: the page's session, its address, and whether it reads the events."""

    session: str | None = None
    address: str = ""
    hears: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic
    _came: bool = False

    def __post_init__(self) -> None:
        self._last = self.clock()

    @property
    def connected(self) -> bool:
        """Whether it is connected now."""
        if self.hears():
            self._came, self._last = True, self.clock()
            return True
        return False

    @property
    def gone(self) -> bool:
        """Whether it left, or did not connect in time."""
        return not self.connected and self.clock() - self._last > (LEAVING_SECONDS if self._came else COMING_SECONDS)


@dataclass(eq=False)
class Presence:
    """Open streams, by the session or event that they serve. Used from the event loop and from threads."""

    proxied: bool = False
    """Whether requests come through a proxy that names the visitor's address, as on a Space."""
    watching: bool = False
    """Whether requests pass through :class:`Watch`; otherwise every reader counts as connected."""
    _open: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    """Number of open streams by address, name, and whether they carry events."""
    _closed: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def connected(self, name: str, address: str, reading: bool) -> Iterator[None]:
        """Count a stream of that name as open in this context; ``reading``: it carries events, not only a heartbeat."""
        with self._lock:
            self._open[address, name, reading] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= Counter([(address, name, reading)])

    def hears(self, *names: str | None) -> bool:
        """Whether a reader is connected under one of these names."""
        with self._lock:
            return any(reading and name in names for _, name, reading in self._open)

    def sessions_to_keep(self) -> list[str]:
        """Names of open sessions, at most :data:`MOST_KEPT` of each address."""
        with self._lock:
            opened = dict.fromkeys((address, name) for address, name, _ in self._open)
        counts, names = Counter[str](), []
        for address, name in opened:
            counts[address] += 1
            if counts[address] <= MOST_KEPT:
                names.append(name)
        return names

    def leave(self, holder: Any, session: str | None) -> None:
        """Record that this session's page was closed, and drop the state of all but the last few closed pages.

        ``holder`` is Gradio's state by session. Gradio would keep several megabytes per page until many more sessions have
        opened. The last few stay, for a page whose connection broke off only for a moment.
        """
        with self._lock:
            if session:
                self._closed[session] = None
                self._closed.move_to_end(session)
            while len(self._closed) > MOST_CLOSED:
                gone, _ = self._closed.popitem(last=False)
                if all(name != gone for _, name, _ in self._open):
                    with holder.lock:
                        holder.session_data.pop(gone, None)
                        holder.time_last_used.pop(gone, None)

    def caller(self, request: gr.Request) -> Caller:
        """Return the sender of this event. A program may read under the event's id instead of its session's name."""
        session, event = request.session_hash, LocalContext.event_id.get(None)
        return Caller(session, self.address_of(request), (lambda: self.hears(session, event)) if self.watching else lambda: True)

    def address_of(self, request: gr.Request) -> str:
        """Address from which an event or a component's server call comes."""
        return self.address(request.headers.items(), request.client.host if request.client else "")

    def address_in(self, scope: Scope) -> str:
        """Address from which a request comes, before Gradio has made an event of it."""
        headers = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in scope["headers"]]
        return self.address(headers, (scope.get("client") or ("",))[0])

    def address(self, headers: Iterable[tuple[str, str]], peer: str) -> str:
        """Address from which a request with these headers comes."""
        return visitor(headers, peer) if self.proxied else peer


@dataclass(eq=False)
class Watch:
    """Middleware that reports open streams to :class:`Presence`."""

    app: ASGIApp
    presence: Presence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.presence.watching = True
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if scope["method"] == "POST":
            refresh(scope["app"], self.presence.sessions_to_keep())
        name, reading = stream(scope)
        with self.presence.connected(name, self.presence.address_in(scope), reading) if name else nullcontext():
            await self.app(scope, receive, send)


def stream(scope: Scope) -> tuple[str, bool]:
    """The session or event whose stream a request opens, and whether it carries events; an empty name for any other request."""
    parts = scope["path"].rstrip("/").split("/")
    if scope["method"] != "GET":
        return "", False
    if parts[-2:] == ["queue", "data"]:
        return Request(scope).query_params.get("session_hash", ""), True
    if len(parts) > 2 and parts[-2] == "heartbeat":
        return parts[-1], False
    if "call" in parts[:-2]:
        return parts[-1], True
    return "", False


def refresh(app: Any, names: list[str]) -> None:
    """Mark these sessions as the last used, so that Gradio drops the state and unread events of others first."""
    state, unread = app.state_holder, app.get_blocks()._queue.pending_messages_per_session
    for name in names:
        if name in state:
            state.update(name)
        if name in unread:
            unread.move_to_end(name)
