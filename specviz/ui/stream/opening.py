"""Pool for reading uploaded trace files, bounded in number, size and processor time.

Gradio has forty threads for all that visitors do. Whoever brings a file waits here without holding one of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import BadInput
from specviz.trace import store as traces
from specviz.trace.schema import Trace
from specviz.trace.store import Outline, TraceStore
from specviz.trace.validate import MAX_FILE
from specviz.ui.shown import MINE, title

READERS = 2
"""Files read at once. Each holds its content twice; more of them would not be faster on one interpreter."""
WAITING = 64
"""Files that may wait for a reader: two classes at once."""
SECONDS = 30.0
"""Processor time for one file, several times what the largest good one takes."""
REMEMBERED = 256
"""Contents known by their digest."""

LOST = "The file did not arrive whole. Choose it again."


@dataclass(frozen=True)
class Opened:
    """A file that was read and kept: the run's name, its title, and what was in it."""

    name: str
    title: str
    outline: Outline


class Opening:
    """Reads uploads into ``store``. Files of one content are read once, however many people bring them.

    Gradio stores uploads of one content and name as one file, so none is removed here: its own sweep does that.
    """

    def __init__(self, store: TraceStore, readers: int = READERS, waiting: int = WAITING, seconds: float = SECONDS) -> None:
        self.store = store
        self.most = readers + waiting
        self.seconds = seconds
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="opening")
        self._reading: dict[str, Future[Opened]] = {}
        self._known: OrderedDict[str, Opened] = OrderedDict()
        self._lock = threading.Lock()

    async def open(self, path: str | Path) -> Opened:
        """The run in an uploaded file. Raises BadTrace with the line and field that is wrong, BadInput when there is no room."""
        future = self._place(await asyncio.to_thread(_digest, Path(path)), lambda: _content(Path(path)))
        return await asyncio.shield(asyncio.wrap_future(future))  # others may wait for the same file

    def take(self, content: bytes) -> Opened:
        """The run in a file's content. Raises as :meth:`open`."""
        return self._place(hashlib.sha256(content).hexdigest(), lambda: content).result()

    def _place(self, digest: str, content: Callable[[], bytes]) -> Future[Opened]:
        with self._lock:
            known = self._known.get(digest)
            if known is not None and known.name.removeprefix(MINE) in self.store:
                done: Future[Opened] = Future()
                done.set_result(known)
                return done
            if digest in self._reading:
                return self._reading[digest]
            if len(self._reading) >= self.most:
                raise BadInput(f"{len(self._reading)} other files are being opened just now. Try again in a minute.")
            future = self._reading[digest] = self._pool.submit(self._read, digest, content)
            return future

    def _read(self, digest: str, content: Callable[[], bytes]) -> Opened:
        try:
            lines = list(self._within_budget(traces.rewritten(content())))
            outline = traces.outline(lines)
            key = self.store.new(lines, checked=True)
            opened = Opened(MINE + key, title(Trace(outline.run, ())), outline)
            with self._lock:
                self._known[digest] = opened
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            return opened
        finally:
            with self._lock:
                self._reading.pop(digest, None)

    def _within_budget(self, lines: Iterator[str]) -> Iterator[str]:
        """The same lines. Raises BadInput once reading them has taken this thread too long."""
        started = time.thread_time()
        for line in lines:
            yield line
            if time.thread_time() - started > self.seconds:
                raise BadInput(
                    f"Checking this file takes more than {self.seconds:g} seconds, which is all that one may take here. "
                    "`python -m specviz validate FILE` checks it on your own machine; record fewer steps or smaller trees."
                )


def _digest(path: Path) -> str:
    """The file's SHA-256. Raises BadInput without its path when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        raise BadInput(LOST) from None


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE + 1)
    except (OSError, ValueError):
        raise BadInput(LOST) from None
