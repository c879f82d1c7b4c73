"""HTTP client of a running server, bounded in bytes and in time.

It waits in short turns, so that a stop or a limit ends every exchange at once, whatever the server sends or leaves out: pings,
single bytes, nothing, bodies without end, slow headers. It follows no redirection and no proxy of the environment.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpcore

from specviz.engines.fields import Fields
from specviz.errors import BadInput, SpecvizError, shown

TURN_SECONDS = 0.25
"""Longest wait for the network before the stop and the limits are looked at."""
CONNECT_SECONDS = 5.0
PAGE_SECONDS = 15.0
"""Most seconds of a page, and of an answer; most seconds without a byte of one."""
ANSWER_SECONDS = 3600.0
SILENT_SECONDS = 60.0
MOST_PAGE = 4 << 20
"""Most bytes of a page, of an answer, of one event in it, and of a refusal."""
MOST_ANSWER = 64 << 20
MOST_EVENT = 4 << 20
MOST_REFUSAL = 64 << 10
MOST_ADDRESS = 1024
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?")
T = TypeVar("T")


class BrokenOff(SpecvizError):
    """An exchange ended otherwise than it should."""

    def __init__(self, words: str) -> None:
        super().__init__(words if words.endswith((".", "!")) else f"{words}.")


class Cancelled(SpecvizError):
    """An exchange was stopped."""


class Refused(BrokenOff):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, words: str) -> None:
        self.status = status
        super().__init__(f"status {status}, {words}")


def address(url: str) -> str:
    """The server's address as this client asks it: its path without a trailing ``/v1``, which every request adds.

    Raises BadInput for what is no http address, and for one with a name, a query or a fragment.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        host, port = parts.hostname or "", parts.port
        if ":" in host:
            host = f"[{ipaddress.IPv6Address(host)}]"
        elif not _NAME.fullmatch(host := host.encode("idna").decode("ascii")):
            raise ValueError
        if len(whole) > MOST_ADDRESS or parts.scheme not in ("http", "https") or port == 0:
            raise ValueError
        if not whole.isprintable() or " " in whole or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise BadInput(f"{shown(url, 200)} is no server's address; give one like http://127.0.0.1:8000.") from None
    path = quote(parts.path, safe="/%:@!$&'()*+,;=~").rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


class Client:
    """Connection to the server at ``url``. Every call raises Cancelled as soon as ``cancel`` is set, BrokenOff at a limit."""

    def __init__(self, url: str, key: str = "", cancel: threading.Event | None = None) -> None:
        if not (key.isascii() and key.isprintable()):
            raise BadInput("The key has a character that no header may have; copy it once more.")
        self._url = url
        self._headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._bounds = _Bounds(cancel or threading.Event())
        self._pool = httpcore.ConnectionPool(max_keepalive_connections=0, network_backend=_Backend(self._bounds))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, at: TracebackType | None) -> None:
        self._pool.close()

    def page(self, path: str, seconds: float = PAGE_SECONDS) -> tuple[int, str]:
        """Status and text of a page."""
        self._bounds.begin(seconds, MOST_PAGE)
        with self._exchange("GET", path) as answer:
            return answer.status, b"".join(answer.iter_stream()).decode("utf-8", "replace")

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Fields | None]:
        """Server-sent events of a posted request, None behind the last. Raises Refused before the first one."""
        self._bounds.begin(ANSWER_SECONDS, MOST_ANSWER)
        with self._exchange("POST", path, json.dumps(body).encode()) as answer:
            if answer.status != 200:
                raise Refused(answer.status, _refusal(answer.iter_stream()))
            for data in _data(answer.iter_stream()):
                if data == b"[DONE]":
                    yield None
                    return
                try:
                    yield Fields.parsed(data.decode("utf-8"))
                except UnicodeDecodeError:
                    raise BrokenOff("it sent something else than UTF-8.") from None

    @contextmanager
    def _exchange(self, method: str, path: str, content: bytes = b"") -> Iterator[httpcore.Response]:
        headers = self._headers | ({"Content-Type": "application/json", "Content-Length": str(len(content))} if content else {})
        try:
            with self._pool.stream(method, self._url + path, headers=headers, content=content or None) as answer:
                yield answer
        except (httpcore.ProtocolError, httpcore.NetworkError) as problem:
            raise BrokenOff(str(problem).strip() or type(problem).__name__) from None


class _Bounds:
    """Limits of one exchange."""

    def __init__(self, cancel: threading.Event) -> None:
        self._cancel = cancel
        self._seconds = self._until = 0.0
        self._left = 0

    def begin(self, seconds: float, most: int) -> None:
        self._seconds, self._until, self._left = seconds, time.monotonic() + seconds, most

    def check(self, received: int = 0) -> None:
        """Raise where the exchange has to end."""
        self._left -= received
        if self._cancel.is_set():
            raise Cancelled("Stopped before the server had answered.")
        if time.monotonic() > self._until:
            raise BrokenOff(f"it took longer than {self._seconds:g} s.")
        if self._left < 0:
            raise BrokenOff("it sent more than an answer holds.")


class _Stream(httpcore.NetworkStream):
    """A socket that is waited for in turns."""

    def __init__(self, connected: socket.socket, bounds: _Bounds) -> None:
        self._socket, self._bounds = connected, bounds

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            data = self._in_turns(lambda: self._socket.recv(max_bytes))
        except OSError as problem:
            raise httpcore.ReadError(problem.strerror or str(problem)) from None
        self._bounds.check(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        rest = memoryview(buffer)
        try:
            while rest:
                rest = rest[self._in_turns(lambda: self._socket.send(rest)) :]
        except OSError as problem:
            raise httpcore.WriteError(problem.strerror or str(problem)) from None

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            secure = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname, do_handshake_on_connect=False)
            self._socket = secure
            self._in_turns(secure.do_handshake)
        except OSError as problem:
            self.close()
            raise httpcore.ConnectError(problem.strerror or str(problem)) from None
        return self

    def close(self) -> None:
        self._socket.close()

    def _in_turns(self, call: Callable[[], T]) -> T:
        silent = time.monotonic() + SILENT_SECONDS
        while True:
            self._bounds.check()
            try:
                return call()
            except TimeoutError:
                if time.monotonic() > silent:
                    raise BrokenOff(f"it said nothing for {SILENT_SECONDS:g} s.") from None


class _Backend(httpcore.NetworkBackend):
    """Sockets of the addresses that a name has, the first one that answers."""

    def __init__(self, bounds: _Bounds) -> None:
        self._bounds = bounds

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None, socket_options: Any = None
    ) -> httpcore.NetworkStream:
        problem, until = "no address", time.monotonic() + CONNECT_SECONDS
        try:
            places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as fault:
            raise httpcore.ConnectError(fault.strerror or str(fault)) from None
        for family, kind, protocol, _, place in places:
            connected = socket.socket(family, kind, protocol)
            connected.settimeout(TURN_SECONDS)
            try:
                fault = connected.connect_ex(place)
                while fault in (errno.EAGAIN, errno.EINPROGRESS, errno.EALREADY) and time.monotonic() < until:
                    self._bounds.check()
                    threading.Event().wait(TURN_SECONDS / 5)
                    fault = connected.connect_ex(place)
                if fault in (0, errno.EISCONN):
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return _Stream(connected, self._bounds)
            except SpecvizError:
                connected.close()
                raise
            connected.close()
            slow = fault in (errno.EAGAIN, errno.EINPROGRESS, errno.EALREADY)
            problem = f"no answer within {CONNECT_SECONDS:g} s" if slow else os.strerror(fault)
        raise httpcore.ConnectError(problem)


def _data(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Data of server-sent events: the lines of one are joined, comments and other fields left out."""
    held, data, size = bytearray(), list[bytes](), 0
    for chunk in chunks:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if held:
                held += line
                line, held = bytes(held), bytearray()
            line = line.strip()
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
                size += len(line)
            if data and (not line or data == [b"[DONE]"]):
                yield b"\n".join(data)
                data, size = [], 0
        held += rest
        if size + len(held) > MOST_EVENT:
            raise BrokenOff("it sent more than an event holds.")
    if data:
        yield b"\n".join(data)


def _refusal(chunks: Iterable[bytes]) -> str:
    """What a refusal says in words."""
    body = b""
    for chunk in chunks:
        body += chunk
        if len(body) > MOST_REFUSAL:
            break
    text = body.decode("utf-8", "replace")
    try:
        return message(Fields.parsed(text).found)
    except BadInput:
        return message(text)


def message(told: Any) -> str:
    """The message in an error of OpenAI's kind; any other as it stands."""
    for name in ("error", "message"):
        told = told[name] if isinstance(told, dict) and told.get(name) else told
    return " ".join((told if isinstance(told, str) else shown(told, 300)).split())[:300]
