"""Access control: visitors' addresses, host names, limits on concurrent requests, connected clients and page sessions.

Gradio runs an event even if the client has disconnected, and drops the oldest session when many new ones arrive. This module
tracks the open streams of each page, so that runs without a client leave the queue and open pages keep their state.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specviz.engine.stop import Limit, Stop, unlimited
from specviz.errors import BadInput, SpecvizError
from specviz.pipeline.request import Memory
from specviz.ui.settings import Settings, is_loopback
from specviz.ui.widgets.downloads import PATH

FORWARDING = ("x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-host", "cf-connecting-ip", "via")
"""Headers set by proxies and tunnels but not by browsers."""
COMING_SECONDS = 10.0
"""Time in seconds for a client to connect after requesting a run."""

LEAVING_SECONDS = 1.0
"""Time in seconds before a run ends after its client has disconnected."""

MOST_CLOSED = 8
"""Maximum number of closed pages whose state is kept."""

MOST_KEPT = 64
"""Maximum number of open sessions per address that are protected from eviction, enough for a class behind one router."""
FOREIGN_HOST = (
    "This app accepts only requests to localhost or 127.0.0.1. To allow access from other machines, start the app with "
    "GRADIO_SERVER_NAME=0.0.0.0."
)


def visitor(headers: Iterable[tuple[str, str]], peer: str) -> str:
    """Return the visitor's address: the last public address in X-Forwarded-For, or ``peer`` without this header.

    Later entries are proxies, and earlier entries may be forged.
    """
    forwarded = ",".join(value for name, value in headers if name.lower() == "x-forwarded-for")
    entries = [entry for part in forwarded.split(",") if (entry := part.strip())]
    for entry in reversed(entries):
        try:
            address = ipaddress.ip_address(_without_port(entry))
        except ValueError:
            return entry[:64]  # not an address, so earlier entries cannot be trusted
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_global:
            return str(address)
    return entries[-1][:64] if entries else peer


def _without_port(host: str) -> str:
    return host[1:].split("]")[0] if host.startswith("[") else host.split(":")[0] if host.count(":") == 1 else host


@dataclass(eq=False)
class Gate:
    """Middleware of a private app that refuses foreign host names (DNS rebinding).

    Calls ``expose`` when a request arrives through a proxy.
    """

    app: ASGIApp
    settings: Callable[[], Settings]
    expose: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and self.settings().private:
            headers = Headers(scope=scope)
            if any(name in headers for name in FORWARDING):
                logging.getLogger(__name__).warning(
                    "A request arrived through a proxy or tunnel, so the settings for public access now apply. If the proxy "
                    "sets X-Forwarded-For, start the app with SPECVIZ_PROXIED=1."
                )
                self.expose()
            # Requests without a Host header are allowed.
            elif scope["type"] == "http" and (host := headers.get("host")) and not is_loopback(_without_port(host).rstrip(".")):
                return await PlainTextResponse(FOREIGN_HOST, 421)(scope, receive, send)
        await self.app(scope, receive, send)


@dataclass(frozen=True)
class Kind:
    """A kind of request with a limit per address.

    ``at_once``: number of concurrent requests; ``seconds``: time without a response after which the next request starts.
    """

    at_once: int
    seconds: float


PAGE = Kind(2, 5.0)
"""The page and its configuration, which take 50 ms to render."""
EVENT = Kind(4, 1.0)
"""POST requests and generated files, a burst of which would block the event loop for seconds."""
WAITING = 256
"""Maximum number of waiting requests per kind and address, enough for several classes behind one router."""
LEAST_BODY = 8_000_000
"""Request size in bytes that is always allowed, because a page may send a stored run."""
CROWDED = f"{WAITING} requests from your address are already waiting. Try again in a minute."


def kind(scope: Scope) -> Kind | None:
    """Return the kind of a request, or None for unlimited ones: uploads, static files and streams."""
    if scope["type"] != "http":
        return None
    path = scope["path"].rstrip("/")
    if scope["method"] == "POST" or path.endswith(f"/{PATH}"):
        return None if path.endswith("/upload") else EVENT
    is_page = path == scope.get("root_path", "").rstrip("/")
    return PAGE if is_page or path.endswith(("/config", "/info", "/openapi.json")) else None


@dataclass
class Line:
    """Requests of one kind from one address. ``present``: number of running and waiting requests."""

    turns: asyncio.Semaphore
    present: int = 0


@dataclass(eq=False)
class Turns:
    """Middleware that limits concurrent requests per address. Further requests wait, and those above a maximum are refused.

    ``most_bytes``: maximum size of a request body.
    """

    app: ASGIApp
    address: Callable[[Scope], str]
    most_bytes: int = LEAST_BODY
    _lines: dict[tuple[str, Kind], Line] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (wanted := kind(scope)):
            return await self.app(scope, receive, send)
        if (body := await self._body(receive)) is None:  # before the turn: a slow client must not delay others
            detail = f"The request exceeds the maximum of {self.most_bytes:,} bytes."
            return await JSONResponse({"detail": detail}, 413)(scope, receive, send)
        key = self.address(scope), wanted
        line = self._lines.setdefault(key, Line(asyncio.Semaphore(wanted.at_once)))
        if line.present >= wanted.at_once + WAITING:
            return await JSONResponse({"detail": CROWDED}, 503)(scope, receive, send)
        line.present += 1
        with ExitStack() as stack:
            stack.callback(self._leave, key, line)
            await line.turns.acquire()
            stack.callback(line.turns.release)
            timer = asyncio.get_running_loop().call_later(wanted.seconds, stack.close)

            async def replayed() -> Message:
                return body.popleft() if body else await receive()

            async def answering(message: Message) -> None:
                stack.close()
                await send(message)

            try:
                await self.app(scope, replayed, answering)
            finally:
                timer.cancel()

    def _leave(self, key: tuple[str, Kind], line: Line) -> None:
        line.present -= 1
        if not line.present:
            del self._lines[key]

    async def _body(self, receive: Receive) -> deque[Message] | None:
        """Read the body of a request; return None if the body is too long."""
        messages: deque[Message] = deque()
        size = 0
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
            size += len(messages[-1].get("body", b""))
            if size > self.most_bytes:
                return None
        return messages


@dataclass(eq=False)
class Caller:
    """Client that requested a run. ``hears``: function that returns whether the client is connected."""

    session: str | None = None
    address: str = ""
    hears: Callable[[], bool] = lambda: True
    _came: bool = False
    _last: float = field(default_factory=lambda: time.monotonic())

    @property
    def connected(self) -> bool:
        """Whether the client is connected."""
        if self.hears():
            self._came, self._last = True, time.monotonic()
            return True
        return False

    @property
    def gone(self) -> bool:
        """Whether the client has disconnected, or did not connect in time."""
        return not self.connected and time.monotonic() - self._last > (LEAVING_SECONDS if self._came else COMING_SECONDS)


@dataclass(eq=False)
class Presence:
    """Open streams of the pages, by session or event id. Thread-safe."""

    proxied: bool = False
    """Whether requests come through a proxy that sets X-Forwarded-For, as on a Space."""
    _open: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    """Number of open streams by address, name, and whether the stream carries events."""
    _closed: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def connected(self, name: str, address: str, reading: bool) -> Iterator[None]:
        """Count a stream as open in this context. ``reading``: whether the stream carries events rather than a heartbeat."""
        with self._lock:
            self._open[address, name, reading] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= Counter([(address, name, reading)])

    def hears(self, *names: str | None) -> bool:
        """Return whether an event stream with one of these names is open."""
        with self._lock:
            return any(reading and name in names for _, name, reading in self._open)

    def sessions_to_keep(self) -> list[str]:
        """Return the names of open sessions, at most :data:`MOST_KEPT` per address."""
        with self._lock:
            opened = dict.fromkeys((address, name) for address, name, _ in self._open)
        counts, names = Counter[str](), []
        for address, name in opened:
            counts[address] += 1
            if counts[address] <= MOST_KEPT:
                names.append(name)
        return names

    def leave(self, holder: Any, session: str | None) -> None:
        """Record that a page was closed, and drop the state of all but the last :data:`MOST_CLOSED` closed pages.

        ``holder``: Gradio's state by session, several megabytes each. The last pages are kept because a page may have lost the
        connection only for a moment.
        """
        with self._lock:
            if session:
                self._closed[session] = None
                self._closed.move_to_end(session)
            while len(self._closed) > MOST_CLOSED:
                gone, _ = self._closed.popitem(last=False)
                if all(name != gone for _, name, _ in self._open):
                    # Private parts of Gradio 6.31, which keeps a closed page's components until the capacity is reached:
                    # ``delete_cache`` removes files only, and ``gr.State(time_to_live=…)`` the values of States only.
                    with holder.lock:
                        holder.session_data.pop(gone, None)
                        holder.time_last_used.pop(gone, None)

    def caller(self, request: gr.Request) -> Caller:
        """Return the client that sent an event. API clients read the stream of the event rather than of the session."""
        return Caller(
            request.session_hash,
            self.address_of(request),
            lambda: self.hears(request.session_hash, getattr(request.state, "event", None)),
        )

    def address_of(self, request: gr.Request | HTTPConnection) -> str:
        """Return the visitor's address for an event or request."""
        peer = request.client.host if request.client else ""
        return visitor(request.headers.items(), peer) if self.proxied else peer

    def address_in(self, scope: Scope) -> str:
        """Return the visitor's address for an ASGI scope."""
        return self.address_of(HTTPConnection(scope))


@dataclass(eq=False)
class Watch:
    """Middleware that registers open streams with :class:`Presence`, and notes the id of the event that a request starts."""

    app: ASGIApp
    presence: Presence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "POST":
            refresh(scope["app"], self.presence.sessions_to_keep())
        name, reading = stream(scope)

        async def answering(message: Message) -> None:
            if event := re.fullmatch(rb'{"event_id":"(\w+)"}', message.get("body", b"")):
                scope.setdefault("state", {})["event"] = event[1].decode()  # read by Presence.caller
            await send(message)

        with self.presence.connected(name, self.presence.address_in(scope), reading) if name else nullcontext():
            await self.app(scope, receive, answering)


def stream(scope: Scope) -> tuple[str, bool]:
    """Return the session or event id of the stream that a request opens, and whether the stream carries events.

    The name is empty if the request opens no stream.
    """
    match scope.get("method"), *scope.get("path", "").rstrip("/").split("/"):
        case "GET", *_, "queue", "data":
            return HTTPConnection(scope).query_params.get("session_hash", ""), True
        case "GET", *_, "heartbeat", name:
            return name, False
        case ("GET", *_, "call", _, name) | ("GET", *_, "call", "v2", _, name):
            return name, True
    return "", False


def refresh(app: Any, names: list[str]) -> None:
    """Mark these sessions as recently used, so that Gradio drops other sessions first."""
    # Private parts of Gradio 6.31. ``state_session_capacity`` bounds the sessions, but the oldest goes first, open or not, and a
    # crowd of strangers could close a visitor's page. For unread events there is no setting at all: the last 2 000 are kept.
    state, unread = app.state_holder, app.get_blocks()._queue.pending_messages_per_session
    for name in names:
        state.update(name)
        if name in unread:
            unread.move_to_end(name)


MOST_PAGES = 256
"""Maximum number of page sessions; above, the longest idle page is dropped."""

MOST_EACH = 40
"""Maximum number of page sessions per address, enough for a class behind one router."""

PATIENCE = 3.0
"""Maximum time in seconds to wait for a stopped run; a run that is loading a model may take longer."""


@dataclass
class PageSession:
    """State of one open page. ``cancel`` stops the current run, and ``over`` is set when the current run has ended.

    ``shown_in``: prefix of the tab that showed another run instead of the current one.
    """

    address: str = ""
    shown_in: str = ""
    memory: Memory = field(default_factory=Memory)
    cancel: Stop | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def running(self) -> bool:
        """Whether a run of the page is waiting or running."""
        return self.cancel is not None and not self.over.is_set()

    def begin(self, limit: Limit = unlimited) -> Stop:
        """Stop the current run and return the ``Stop`` of a new run."""
        self.stop()
        self.cancel, self.over, self.shown_in = Stop(limit), threading.Event(), ""
        return self.cancel

    def current(self, cancel: threading.Event) -> bool:
        """Return whether ``cancel`` belongs to the page's current run."""
        return cancel is self.cancel

    def turn_away(self, shown_in: str = "") -> None:
        """Stop the current run and wait until it has ended, so that no late frame replaces what the page shows next."""
        running = self.stop()
        self.cancel, self.shown_in = None, shown_in
        if running:
            self.over.wait(PATIENCE)

    def stop(self) -> bool:
        """Stop the current run. Returns whether a run was active."""
        running = self.cancel is not None and not self.cancel.is_set()
        if self.cancel:
            self.cancel.set()
        return running


@dataclass(eq=False)
class PageSessions:
    """Sessions of the pages that have run something, by secret session name."""

    most: int = MOST_PAGES
    each: int = MOST_EACH
    _open: OrderedDict[str, PageSession] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, caller: Caller) -> PageSession:
        """Return the session of a page that starts a run, creating it if necessary.

        Above the maximum, an idle page is dropped: one of the same address if the address has the maximum. Raises BadInput
        without a session name, and SpecvizError if no page is idle.
        """
        session = caller.session
        if not session:
            raise BadInput("This page has no session; reload it.")
        with self._lock:
            if session not in self._open:
                same_address = [name for name, page in self._open.items() if page.address == caller.address]
                if len(same_address) >= self.each:
                    self._forget_one_of(same_address)
                elif len(self._open) >= self.most:
                    self._forget_one_of(list(self._open))
                self._open[session] = PageSession(caller.address)
            self._open.move_to_end(session)
            return self._open[session]

    def _forget_one_of(self, names: list[str]) -> None:
        idle = next((name for name in names if not self._open[name].running), None)
        if not idle:
            raise SpecvizError(
                f"{len(names)} runs are already waiting or running, the maximum. Try again when one of these runs is over; "
                "recorded runs play without waiting."
            )
        del self._open[idle]

    def find(self, session: str | None) -> PageSession | None:
        """Return the session of a page, or None if the page has not run anything."""
        with self._lock:
            return self._open.get(session or "")

    def leave(self, session: str | None) -> None:
        """Stop the run of a closed page and drop the session."""
        with self._lock:
            page = self._open.pop(session or "", None)
        if page:
            page.stop()

    def __len__(self) -> int:
        return len(self._open)
