"""Pool of jobs that turn a kept or uploaded run into data and back: bounded in number, size and memory.

Gradio has forty threads for all visitors. A request for a run waits here without holding one of them.
"""

from __future__ import annotations

import asyncio
import gzip
import secrets
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specviz.errors import BadInput

WORKERS = 2
"""Number of concurrent jobs. A parsed run takes ten times the memory of its text; one interpreter gains nothing from more."""
WAITING = 64
"""Number of jobs that may wait, enough for two classes at once. One address may have half of them."""
KEPT_BYTES = 64 << 20
"""Maximum bytes of finished files cached, compressed, for later requests."""
SWITCH_SECONDS = 0.0002
"""Switch interval of the interpreter while jobs run: each answer needs the interpreter dozens of times, and by default (5 ms)
a hundred requests at once would wait a minute."""
LEVEL = 5
PATH = "specviz/made"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Made:
    """A file made from a run: its text, compressed, and the name and type under which it is saved."""

    name: str
    media_type: str
    packed: bytes
    size: int
    token: str

    @staticmethod
    def of(name: str, media_type: str, text: str) -> Made:
        """Compress a text. Its token cannot be guessed."""
        data = text.encode("utf-8", "surrogatepass")
        return Made(name, media_type, gzip.compress(data, LEVEL, mtime=0), len(data), secrets.token_urlsafe(18))


class Pool:
    """Jobs in order of arrival, one per key, and a cache of the latest files. Used from the event loop and from threads."""

    def __init__(self, workers: int = WORKERS, waiting: int = WAITING, kept_bytes: int = KEPT_BYTES) -> None:
        self.most = workers + waiting
        self.kept_bytes = kept_bytes
        self.jobs: dict[Hashable, Future[Any]] = {}
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="pool", initializer=self._enter)
        self._inside = threading.local()
        self._owners: Counter[str] = Counter()
        self._files: OrderedDict[Hashable, Made] = OrderedDict()
        self._lock = threading.Lock()
        self._switch = sys.getswitchinterval()

    def _enter(self) -> None:
        self._inside.yes = True

    def submit(self, job: Callable[[], Result], key: Hashable = None, owner: str = "") -> Future[Result]:
        """Submit ``job`` and return its future, shared by all pending requests for the same ``key``. ``owner`` is the address
        of the request. Raises BadInput when the pool is full."""
        key = object() if key is None else key
        with self._lock:
            if key in self.jobs:
                return self.jobs[key]
            if len(self.jobs) >= self.most or (owner and self._owners[owner] >= max(1, self.most // 2)):
                raise BadInput(f"{len(self.jobs)} other files are being read or made just now. Try again in a minute.")
            future: Future[Result] = self._threads.submit(self._do, key, owner, job)
            self.jobs[key] = future
            self._owners[owner] += 1
            return future

    def _do(self, key: Hashable, owner: str, job: Callable[[], Result]) -> Result:
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            return job()
        finally:
            with self._lock:
                self.jobs.pop(key, None)
                if not self.jobs:
                    sys.setswitchinterval(self._switch)
                self._owners[owner] -= 1
                if not self._owners[owner]:
                    del self._owners[owner]

    async def do(self, job: Callable[[], Result], key: Hashable = None, owner: str = "") -> Result:
        """Await the result of ``job``. Raises its exceptions, and BadInput when the pool is full."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(job, key, owner)))  # others may await the same job

    def result(self, job: Callable[[], Result], key: Hashable = None) -> Result:
        """Return the result of ``job``, blocking the calling thread; a job of this pool runs it directly."""
        return job() if getattr(self._inside, "yes", False) else self.submit(job, key).result()

    async def file(self, key: Hashable, make: Callable[[], Made], owner: str = "") -> Made:
        """Return the file of this ``key`` from the cache, or make it."""

        def known() -> Made | None:
            with self._lock:
                return self._files.get(key)

        def kept() -> Made:
            made = known() or make()
            with self._lock:  # before the job is over: the next request finds the job or the file
                self._files[key] = made
                while len(self._files) > 1 and sum(len(file.packed) for file in self._files.values()) > self.kept_bytes:
                    self._files.popitem(last=False)
            return made

        made = known()
        if made:
            return made
        return await self.do(kept, ("file", key), owner)

    def find(self, token: str) -> Made | None:
        """Return the cached file of a token; None for an unknown one."""
        with self._lock:
            return next((made for made in self._files.values() if secrets.compare_digest(made.token, token)), None)


def route(pool: Pool) -> Route:
    """Route of finished files, sent compressed as cached, so that a large one costs the server almost nothing."""

    def made(request: Request) -> Response:
        file = pool.find(request.path_params["token"])
        if file is None:
            return Response(status_code=404)
        headers = {
            "Content-Encoding": "gzip",
            "Content-Disposition": f'attachment; filename="{file.name}"',
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(file.packed, media_type=file.media_type, headers=headers)

    return Route(f"/{PATH}/{{token}}", made)
