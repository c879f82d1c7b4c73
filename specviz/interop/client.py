"""HTTP client for a running server, with limits on bytes and time.

A separate thread does the network I/O, and calls poll it at short intervals. A stop or a limit therefore ends an exchange at
once, even if the server sends slow headers, single bytes, endless bodies or nothing. The client follows no redirects and
ignores proxies in the environment.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from concurrent.futures import wait
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from specviz.errors import BadInput, SpecvizError, shown
from specviz.interop.responses import Response, converted

TURN_SECONDS = 0.25
"""Maximum wait for the network between two checks for a stop and for the limits."""
CONNECT_SECONDS = 5.0
PAGE_SECONDS = 15.0
"""Maximum seconds for a page; the next constants are for a whole response and between two of its bytes."""
ANSWER_SECONDS = 3600.0
SILENT_SECONDS = 60.0
MOST_PAGE = 4 << 20
"""Maximum bytes of a page; the next constants are for a response, one of its events, and an error message."""
MOST_ANSWER = 64 << 20
MOST_EVENT = 4 << 20
MOST_REFUSAL = 64 << 10
MOST_ADDRESS = 1024
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?")
T = TypeVar("T")


class BrokenOff(SpecvizError):
    """An exchange that failed. ``status`` is not 200 if the server refused the request."""

    def __init__(self, words: str, status: int = 200) -> None:
        super().__init__(words if words.endswith((".", "!")) else f"{words}.")
        self.status = status


class Cancelled(SpecvizError):
    """An exchange that was stopped."""


def address(url: str) -> str:
    """Return the server's address in normal form, without a trailing ``/v1``.

    Raises BadInput if ``url`` is not an http address or has a user name, query or fragment.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        host, port = parts.hostname or "", parts.port
        host = f"[{ipaddress.IPv6Address(host)}]" if ":" in host else host.encode("idna").decode("ascii")
        named = host.startswith("[") or _NAME.fullmatch(host)
        valid = named and len(whole) <= MOST_ADDRESS and parts.scheme in ("http", "https") and port != 0
        if not valid or not whole.isprintable() or " " in whole or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise BadInput(f"{shown(url, 200)} is not a server address; give one like http://127.0.0.1:8000.") from None
    path = quote(parts.path, safe="/%:@!$&'()*+,;=~").rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"


class Client:
    """Connection to the server at ``url``. Calls raise Cancelled as soon as ``cancel`` is set, and BrokenOff at a limit."""

    def __init__(self, url: str, key: str = "", cancel: threading.Event | None = None) -> None:
        if not (key.isascii() and key.isprintable()):
            raise BadInput("The key has a character that a header may not contain; copy it again.")
        self._url, self._cancel = url, cancel or threading.Event()
        self._seconds = self._until = 0.0
        self._http = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_keepalive_connections=0),
            verify=_certificates(),
            trust_env=False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *problem: object) -> None:
        asyncio.run_coroutine_threadsafe(self._http.aclose(), _network())

    def page(self, path: str, seconds: float = PAGE_SECONDS) -> tuple[int, str]:
        """Return the status and text of a page."""
        status, chunks = self._ask("GET", path, seconds, MOST_PAGE)
        return status, b"".join(chunks).decode("utf-8", "replace")

    def metrics(self, seconds: float = PAGE_SECONDS) -> str:
        """Return the text of ``/metrics``, or "" if the page is missing or the exchange fails."""
        try:
            status, text = self.page("/metrics", seconds)
        except BrokenOff:
            return ""
        return text if status == 200 else ""

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Response | None]:
        """Yield the server-sent events of a posted request, then None. Raises BrokenOff before the first event if the server
        refuses."""
        status, chunks = self._ask("POST", path, ANSWER_SECONDS, MOST_ANSWER, body)
        if status != 200:
            refusal = b""
            while len(refusal) <= MOST_REFUSAL and (chunk := next(chunks, b"")):
                refusal += chunk
            raise BrokenOff(f"status {status}, {message(refusal.decode('utf-8', 'replace'))}", status)
        for data in _data(chunks):
            if data == b"[DONE]":
                yield None
                return
            try:
                yield converted(Response, data.decode("utf-8"))
            except UnicodeDecodeError:
                raise BrokenOff("the response is not UTF-8.") from None

    def _ask(
        self, method: str, path: str, seconds: float, most: int, body: Mapping[str, Any] | None = None
    ) -> tuple[int, Iterator[bytes]]:
        """Send a request. Returns the status and the body, limited in seconds and bytes."""
        self._seconds, self._until = seconds, time.monotonic() + seconds
        request = self._http.build_request(method, self._url + path, json=body)
        answer = self._wait(self._http.send(request, stream=True))

        def chunks(source: AsyncIterator[bytes], left: int) -> Iterator[bytes]:
            while chunk := self._wait(_next(source)):
                left -= len(chunk)
                if left < 0:
                    raise BrokenOff("the response is too long.")
                yield chunk

        return answer.status_code, chunks(answer.aiter_raw(), most)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the network coroutine ``work``. Raises Cancelled on a stop and BrokenOff at the time limit."""
        future = asyncio.run_coroutine_threadsafe(work, _network())
        try:
            while not future.done():
                if self._cancel.is_set():
                    raise Cancelled("Stopped before the server had answered.")
                if time.monotonic() > self._until:
                    raise BrokenOff(f"the response took longer than {self._seconds:g} s.")
                wait([future], TURN_SECONDS)
            return future.result()
        except httpx.ConnectTimeout:
            raise BrokenOff(f"no answer within {CONNECT_SECONDS:g} s.") from None
        except httpx.TimeoutException:
            raise BrokenOff(f"the server sent nothing for {SILENT_SECONDS:g} s.") from None
        except httpx.TransportError as problem:
            raise BrokenOff(str(problem).strip() or type(problem).__name__) from None
        finally:
            future.cancel()


@cache
def _network() -> asyncio.AbstractEventLoop:
    """Return the event loop of the network thread, which all clients of this process share."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="specviz network", daemon=True).start()
    return loop


_certificates = cache(partial(httpx.create_ssl_context, trust_env=False))
"""Trusted certificate authorities, cached because reading them is slow."""


async def _next(chunks: AsyncIterator[bytes]) -> bytes:
    return await anext(chunks, b"")


def _data(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the data of server-sent events: lines of an event are joined; comments and other fields are skipped."""
    held, data, size = bytearray(), list[bytearray](), 0
    for chunk in chunks:
        held += chunk
        lines = list[bytearray]()
        if b"\n" in chunk:
            *lines, held = held.split(b"\n")
        for line in map(bytearray.strip, lines):
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
                size += len(line)
            if data and (not line or data == [b"[DONE]"]):
                yield b"\n".join(data)
                data, size = [], 0
        if size + len(held) > MOST_EVENT:
            raise BrokenOff("an event is too long.")
    if data:
        yield b"\n".join(data)


def message(answer: Any) -> str:
    """Return the message of an error in OpenAI's format, as text or parsed; any other ``answer`` is returned as text."""
    if isinstance(answer, str):
        with suppress(BadInput):
            answer = converted(dict[str, Any], answer)
    for name in ("error", "message"):
        answer = answer[name] if isinstance(answer, dict) and answer.get(name) else answer
    return " ".join((answer if isinstance(answer, str) else shown(answer, 300)).split())[:300]
