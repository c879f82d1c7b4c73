"""A server that answers with the bytes it was given, in whatever manner: pings, silence, bodies without end."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

MODELS = json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
Manner = Callable[[threading.Event], Iterator[bytes]]
"""What is sent, until the event says that the test is over."""


def _again(data: bytes, seconds: float) -> Callable[[threading.Event], Iterator[bytes]]:
    def manner(over: threading.Event) -> Iterator[bytes]:
        yield HEAD
        while not over.wait(seconds):
            yield data

    return manner


def _slow_headers(over: threading.Event) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while not over.wait(0.05):
        yield b"X: y\r\n"


def _nothing(over: threading.Event) -> Iterator[bytes]:
    over.wait()
    yield b""


MANNERS: dict[str, Manner] = {
    "pings": _again(b": ping\n\n", 0.05),
    "single bytes": _again(b"d", 0.05),
    "roles without text": _again(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', 0.05),
    "a body without end": _again(b"\n" * 65536, 0.0),
    "silence after the headers": _again(b"", 60.0),
    "slow headers": _slow_headers,
    "nothing": _nothing,
}


@contextmanager
def serving(manner: Manner, path: bytes = b"POST ") -> Iterator[str]:
    """The server's address. Requests that begin with ``path`` are answered in this manner, the list of models as it should be."""
    over = threading.Event()

    def found(asked: bytes) -> Iterator[bytes]:
        if asked.startswith(path):
            yield from manner(over)
        elif asked.startswith(b"GET /v1/models"):
            yield HEAD + MODELS
        else:
            yield b"HTTP/1.1 404 None\r\nContent-Length: 0\r\n\r\n"

    with _listening(found) as url:
        try:
            yield url
        finally:
            over.set()


@contextmanager
def paged(pages: Mapping[bytes, bytes]) -> Iterator[str]:
    """The address of a server that answers requests by how they begin."""

    def found(asked: bytes) -> Iterator[bytes]:
        yield HEAD + next((page for path, page in pages.items() if asked.startswith(path)), b"")

    with _listening(found) as url:
        yield url


@contextmanager
def _listening(found: Callable[[bytes], Iterator[bytes]]) -> Iterator[str]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked = self.request.recv(65536)
            while asked.startswith(b"POST") and b"\r\n\r\n{" not in asked:
                asked += self.request.recv(65536)
            try:
                for data in found(asked):
                    self.wfile.write(data)
            except OSError:
                return  # the client has gone, as it should

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
