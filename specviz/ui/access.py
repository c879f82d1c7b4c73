"""Access to the app: the visitor's address, the host name used, proxies in between, and concurrent requests per address."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specviz.ui.settings import Settings, is_loopback
from specviz.ui.widgets.downloads import PATH

FORWARDING = ("x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-host", "cf-connecting-ip", "via")
"""Headers that proxies and tunnels add and browsers never send."""
FOREIGN_HOST = (
    "This app answers only where it runs, as localhost or 127.0.0.1. To let others reach it, start it with "
    "GRADIO_SERVER_NAME=0.0.0.0."
)


def visitor(headers: Iterable[tuple[str, str]], peer: str) -> str:
    """Return the visitor's address behind proxies: the last public one in X-Forwarded-For, ``peer`` without that header.

    The visitor may have written the entries before it; those after it are proxies.
    """
    forwarded = ",".join(value for name, value in headers if name.lower() == "x-forwarded-for")
    entries = [entry for part in forwarded.split(",") if (entry := part.strip())]
    for entry in reversed(entries):
        try:
            address = ipaddress.ip_address(_without_port(entry))
        except ValueError:
            return entry[:64]  # a proxy wrote it, though it is no address: no entry before it can be trusted
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_global:
            return str(address)
    return entries[-1][:64] if entries else peer


def _without_port(host: str) -> str:
    return host[1:].split("]")[0] if host.startswith("[") else host.split(":")[0] if host.count(":") == 1 else host


@dataclass(eq=False)
class Gate:
    """Middleware of a private app: refuses foreign host names, by which another site's page could reach the app, and calls
    ``expose`` when a request comes through a proxy."""

    app: ASGIApp
    settings: Callable[[], Settings]
    expose: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and self.settings().private:
            headers = Headers(scope=scope)
            if any(name in headers for name in FORWARDING):
                logging.getLogger(__name__).warning(
                    "A proxy or tunnel brings visitors: what only this machine may do is off. Where it adds their addresses, "
                    "start the app with SPECVIZ_PROXIED=1."
                )
                self.expose()
            # A program may omit the header.
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
"""The page and its configuration, which a thread renders in a twentieth of a second."""
EVENT = Kind(4, 1.0)
"""POST requests, and files that are made when asked for. A burst would block the event loop for seconds; one that waits for a
job lets others in after a second."""
WAITING = 256
"""Number of requests of one kind and address that may wait, enough for several classes behind one router."""
LEAST_BODY = 8_000_000
"""Bytes that any request may send at least: a page sends back the runs that it kept."""
CROWDED = f"{WAITING} requests from your address wait already. Try again in a minute."


def kind(scope: Scope) -> Kind | None:
    """Return the kind of a request that is costly for its size; None for uploads, files and streams."""
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
    """Middleware that shares the event loop fairly: a few requests of an address run at once, others wait, and beyond a
    bound they are refused. A body is read before its request's turn, up to the size of an upload."""

    app: ASGIApp
    address: Callable[[Scope], str]
    most_bytes: int = LEAST_BODY
    _lines: dict[tuple[str, Kind], Line] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (wanted := kind(scope)) is None:
            return await self.app(scope, receive, send)
        if (body := await self._body(receive)) is None:  # read first: a slow sender delays nobody else
            detail = f"This request sends more than {self.most_bytes:,} bytes, the most there may be. Send less."
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
        """Read the messages of a whole body; return None for one that is too long."""
        messages: deque[Message] = deque()
        size = 0
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
            size += len(messages[-1].get("body", b""))
            if size > self.most_bytes:
                return None
        return messages
