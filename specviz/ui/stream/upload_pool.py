"""Reading of uploaded and kept trace files in the pool, bounded in size and processor time."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import BadInput
from specviz.trace import store as traces
from specviz.trace.schema import Trace
from specviz.trace.store import Outline, TraceStore
from specviz.trace.validate import MAX_FILE
from specviz.ui.run_lookup import MINE, title
from specviz.ui.stream.pool import Pool

SECONDS = 30.0
"""Maximum processor seconds for one file, several times those of the largest valid one."""
REMEMBERED = 256
"""Number of contents remembered by their digest."""

LOST = "The file did not arrive whole. Choose it again."


@dataclass(frozen=True)
class Opened:
    """A file that was read and kept: the run's name, its title, and its outline."""

    name: str
    title: str
    outline: Outline


class UploadPool:
    """Reads uploads into ``store``. Files with the same content are read once, however many visitors upload them.

    Gradio stores uploads with the same content and name as one file, so none is removed here: the sweep of the folder does that.
    """

    def __init__(self, store: TraceStore, pool: Pool | None = None, seconds: float = SECONDS) -> None:
        self.store = store
        self.pool = pool or Pool()
        self.seconds = seconds
        self._known: OrderedDict[str, Opened] = OrderedDict()
        self._lock = threading.Lock()

    async def open(self, path: str | Path, owner: str = "") -> Opened:
        """Read the run in an uploaded file. Raises BadTrace naming the wrong line and field, BadInput when the pool is full."""
        return await self._opened(await asyncio.to_thread(_digest, Path(path)), lambda: self._lines(Path(path)), owner)

    async def take(self, read: Callable[[], Trace], key: str, owner: str = "") -> Opened:
        """Keep the run that ``read`` returns, in the pool, from what a page had kept: the ``key``. Raises as :meth:`open`."""
        digest = hashlib.sha256(f"kept {key}".encode("utf-8", "surrogatepass")).hexdigest()
        return await self._opened(digest, lambda: traces.lines(read()), owner)

    async def _opened(self, digest: str, read: Callable[[], list[str]], owner: str) -> Opened:
        with self._lock:
            known = self._known.get(digest)
        if known is not None and known.name.removeprefix(MINE) in self.store:
            return known
        return await self.pool.do(lambda: self._keep(digest, read()), digest, owner)

    def _keep(self, digest: str, lines: list[str]) -> Opened:
        outline = traces.outline(lines)
        key = self.store.new(lines, checked=True)
        opened = Opened(MINE + key, title(Trace(outline.run, ())), outline)
        with self._lock:
            self._known[digest] = opened
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return opened

    def _lines(self, path: Path) -> list[str]:
        """Return the file's lines, checked. Raises BadInput without its path when it cannot be read or takes too long."""
        started, lines = time.thread_time(), list[str]()
        try:
            with path.open("rb") as file:
                content = file.read(MAX_FILE + 1)
        except (OSError, ValueError):
            raise BadInput(LOST) from None
        for line in traces.rewritten(content):
            lines.append(line)
            if time.thread_time() - started > self.seconds:
                raise BadInput(
                    f"Checking this file takes more than {self.seconds:g} seconds, which is all that one may take here. "
                    "`python -m specviz validate FILE` checks it on your own machine; record fewer steps or smaller trees."
                )
        return lines


def _digest(path: Path) -> str:
    """The file's SHA-256. Raises BadInput without its path when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        raise BadInput(LOST) from None
