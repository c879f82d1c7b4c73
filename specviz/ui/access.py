"""Access to the app: visitors' addresses, host names, proxies, concurrent requests, which readers are still connected, and the
sessions of open pages.

Gradio runs an event whether or not a client reads its answers, and drops the oldest session when many new ones arrive. So this
module counts the streams that a page holds open. A run whose reader left or never connected gives up its place in the queue, and
an open page keeps its state however many requests other sessions send.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from gradio.context import LocalContext
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
"""Headers that proxies and tunnels add and browsers never send."""
COMING_SECONDS = 10.0
"""Seconds that a run waits for its reader's first connection; a page connects moments after its request."""

LEAVING_SECONDS = 1.0
"""Seconds that a run goes on after its reader has disconnected."""

MOST_CLOSED = 8
"""Number of closed pages whose state is kept."""

MOST_KEPT = 64
"""Number of open sessions per address that are protected from eviction: more than a class behind one router opens."""
FOREIGN_HOST = (
    "This app answers only on its own machine, as localhost or 127.0.0.1. To let others reach it, start it with "
    "GRADIO_SERVER_NAME=0.0.0.0."
)


def visitor(headers: Iterable[tuple[str, str]], peer: str) -> str:
    """Return the visitor's address behind proxies: the last public one in X-Forwarded-For, or ``peer`` without that header.

    Earlier entries may be forged by the visitor; later ones are proxies.
    """
    forwarded = ",".join(value for name, value in headers if name.lower() == "x-forwarded-for")
    entries = [entry for part in forwarded.split(",") if (entry := part.strip())]
    for entry in reversed(entries):
        try:
            address = ipaddress.ip_address(_without_port(entry))
        except ValueError:
            return entry[:64]  # a proxy wrote something other than an address: no earlier entry can be trusted
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_global:
            return str(address)
    return entries[-1][:64] if entries else peer


def _without_port(host: str) -> str:
    return host[1:].split("]")[0] if host.startswith("[") else host.split(":")[0] if host.count(":") == 1 else host


@dataclass(eq=False)
class Gate:
    """Middleware of a private app: refuses foreign host names, through which another site's page could reach the app, and calls
    ``expose`` when a request comes through a proxy."""

    app: ASGIApp
    settings: Callable[[], Settings]
    expose: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and self.settings().private:
            headers = Headers(scope=scope)
            if any(name in headers for name in FORWARDING):
                logging.getLogger(__name__).warning(
                    "Requests arrive through a proxy or tunnel, so the settings for public access now apply. If the proxy adds "
                    "visitors' addresses, start the app with SPECVIZ_PROXIED=1."
                )
                self.expose()
            # A program may omit the Host header.
            elif scope["type"] == "http" and (host := headers.get("host")) and not is_loopback(_without_port(host).rstrip(".")):
                return await PlainTextResponse(FOREIGN_HOST, 421)(scope, receive, send)
        await self.app(scope, receive, send)


@dataclass(frozen=True)
class Kind:
    """Requests that share a limit per address: ``at_once`` of them run concurrently. After ``seconds`` without an answer,
    the next request starts."""

    at_once: int
    seconds: float


PAGE = Kind(2, 5.0)
"""The page and its configuration, which take a thread 50 ms to render."""
EVENT = Kind(4, 1.0)
"""POST requests, and files made on demand. A burst would block the event loop for seconds; a request that waits for a job lets
the next one in after a second."""
WAITING = 256
"""Maximum number of waiting requests per kind and address, enough for several classes behind one router."""
LEAST_BODY = 8_000_000
"""Bytes that any request may always send: a page sends back the runs that it stored."""
CROWDED = f"{WAITING} requests from your address are already waiting. Try again in a minute."


def kind(scope: Scope) -> Kind | None:
    """Return the kind of a costly request; None for uploads, static files and streams."""
    if scope["type"] != "http":
        return None
    path = scope["path"].rstrip("/")
    if scope["method"] == "POST" or path.endswith(f"/{PATH}"):
        return None if path.endswith("/upload") else EVENT
    is_page = path == scope.get("root_path", "").rstrip("/")
    return PAGE if is_page or path.endswith(("/config", "/info", "/openapi.json")) else None


@dataclass
class Line:
    """Requests of one kind and address; ``present`` counts those running and those waiting."""

    turns: asyncio.Semaphore
    present: int = 0


@dataclass(eq=False)
class Turns:
    """Middleware that shares the event loop fairly: a few requests per address run at once, others wait, and those
    beyond a bound are refused. A request's body is read before its turn, up to ``most_bytes``."""

    app: ASGIApp
    address: Callable[[Scope], str]
    most_bytes: int = LEAST_BODY
    _lines: dict[tuple[str, Kind], Line] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (wanted := kind(scope)) is None:
            return await self.app(scope, receive, send)
        if (body := await self._body(receive)) is None:  # read first: a slow sender delays nobody else
            detail = f"This request sends more than {self.most_bytes:,} bytes, the maximum. Send less."
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
        """Read all messages of a body; return None if it is too long."""
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
    """Sender of a run request: the page's session, its address, and whether it reads the events."""

    session: str | None = None
    address: str = ""
    hears: Callable[[], bool] = lambda: True
    _came: bool = False
    _last: float = field(default_factory=lambda: time.monotonic())

    @property
    def connected(self) -> bool:
        """Whether it is connected now."""
        if self.hears():
            self._came, self._last = True, time.monotonic()
            return True
        return False

    @property
    def gone(self) -> bool:
        """Whether it has left, or did not connect in time."""
        return not self.connected and time.monotonic() - self._last > (LEAVING_SECONDS if self._came else COMING_SECONDS)


@dataclass(eq=False)
class Presence:
    """Open streams, by the session or event that they serve. Used from the event loop and from threads."""

    proxied: bool = False
    """Whether requests come through a proxy that names the visitor's address, as on a Space."""
    _open: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    """Number of open streams by address, name, and whether they carry events."""
    _closed: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def connected(self, name: str, address: str, reading: bool) -> Iterator[None]:
        """Count a stream of that name as open in this context; ``reading`` means that it carries events, not only a heartbeat."""
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
        """Names of open sessions, at most :data:`MOST_KEPT` per address."""
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

        ``holder`` is Gradio's state by  Gradio would keep several megabytes per page until many more sessions have
        opened. The last few stay, in case a page lost its connection only for a moment.
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
        """Return this event's sender. A program may read the stream of the event's id instead of its session's."""
        session, event = request.session_hash, LocalContext.event_id.get(None)
        return Caller(session, self.address_of(request), lambda: self.hears(session, event))

    def address_of(self, request: gr.Request | HTTPConnection) -> str:
        """Address from which an event or another request comes."""
        peer = request.client.host if request.client else ""
        return visitor(request.headers.items(), peer) if self.proxied else peer

    def address_in(self, scope: Scope) -> str:
        """Address from which a request comes, before Gradio has turned it into an event."""
        return self.address_of(HTTPConnection(scope))


@dataclass(eq=False)
class Watch:
    """Middleware that reports open streams to :class:`Presence`."""

    app: ASGIApp
    presence: Presence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        return HTTPConnection(scope).query_params.get("session_hash", ""), True
    if len(parts) > 2 and parts[-2] == "heartbeat":
        return parts[-1], False
    if "call" in parts[:-2]:
        return parts[-1], True
    return "", False


def refresh(app: Any, names: list[str]) -> None:
    """Mark these sessions as the last used, so that Gradio drops the state and unread events of others first.

    The unread events are in a private attribute: Gradio has no public setting for how many sessions keep them.
    """
    state, unread = app.state_holder, app.get_blocks()._queue.pending_messages_per_session
    for name in names:
        if name in state:
            state.update(name)
        if name in unread:
            unread.move_to_end(name)


MOST_PAGES = 256
"""Maximum number of pages whose memory of earlier runs the server keeps; beyond it, the page idle longest is dropped."""

MOST_EACH = 40
"""Maximum number of these pages per address; the app sets it to two thirds of its queue, enough for a class behind one router."""

PATIENCE = 3.0
"""Seconds that a page waits for a run that it stops; a run that is loading its model may take longer to end."""


@dataclass
class PageSession:
    """State of one open page. ``cancel`` stops its current run; ``over`` is set once that run's frames have ended."""

    address: str = ""
    memory: Memory = field(default_factory=Memory)
    cancel: Stop | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def running(self) -> bool:
        """Whether a run of this page is waiting or running."""
        return self.cancel is not None and not self.over.is_set()

    def begin(self, limit: Limit = unlimited) -> Stop:
        """Stop the page's previous run and return the ``Stop`` of a new one."""
        self.stop()
        self.cancel, self.over = Stop(limit), threading.Event()
        return self.cancel

    def current(self, cancel: threading.Event) -> bool:
        """Whether ``cancel`` belongs to the run that this page shows, stopped or not."""
        return cancel is self.cancel

    def turn_away(self) -> None:
        """Stop the current run and wait for it, so that its last frames do not follow what the page shows next."""
        running = self.stop()
        self.cancel = None
        if running:
            self.over.wait(PATIENCE)

    def stop(self) -> bool:
        """Stop the current run. Returns False without one."""
        running = self.cancel is not None and not self.cancel.is_set()
        if self.cancel is not None:
            self.cancel.set()
        return running


@dataclass(eq=False)
class PageSessions:
    """Pages that have run something, by session name, which is known only to the server and that page."""

    most: int = MOST_PAGES
    each: int = MOST_EACH
    _open: OrderedDict[str, PageSession] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, session: str | None, address: str = "") -> PageSession:
        """Return the session of a page that is about to run something, created if it is new.

        Only an idle page makes room for it, one of the same address if that address has its maximum. Raises BadInput without a
        session name, and SpecvizError when no page is idle.
        """
        if not session:
            raise BadInput("This page has no session; reload it.")
        with self._lock:
            if session not in self._open:
                same_address = [name for name, page in self._open.items() if page.address == address]
                if len(same_address) >= self.each:
                    self._forget_one_of(same_address)
                elif len(self._open) >= self.most:
                    self._forget_one_of(list(self._open))
                self._open[session] = PageSession(address)
            self._open.move_to_end(session)
            return self._open[session]

    def _forget_one_of(self, names: list[str]) -> None:
        idle = next((name for name in names if not self._open[name].running), None)
        if idle is None:
            raise SpecvizError(
                f"{len(names)} runs are already waiting or running, the maximum. Try again when one of them is over; "
                "recorded runs play without waiting."
            )
        del self._open[idle]

    def find(self, session: str | None) -> PageSession | None:
        """Return the session of a page that has run something; None for any other."""
        with self._lock:
            return self._open.get(session or "")

    def leave(self, session: str | None) -> None:
        """Stop the run of a closed page and drop its"""
        with self._lock:
            page = self._open.pop(session or "", None)
        if page is not None:
            page.stop()

    def __len__(self) -> int:
        return len(self._open)
