"""Runs that visitors share by link: files of the app's own folder, each kept for some days and found only by its key.

Nothing is kept until a visitor presses *Share*. The folder is bounded in files and bytes; the least recently opened go first.
A run keeps the key of its store, which nobody can guess, so a link discloses that run and no other.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from specviz.errors import BadInput
from specviz.trace import store as traces
from specviz.trace.store import TraceStore

DAY, HOUR = 86_400, 3600
LARGEST = 8_000_000
"""Maximum characters of one run's text."""
SUFFIX = traces.SUFFIX + traces.PACKED


@dataclass(eq=False)
class SharedRuns:
    """Files of shared runs. A file's modification time is that of the sharing, its access time that of the last opening."""

    store: TraceStore
    folder: Path
    days: int
    most_runs: int = 1000
    most_bytes: int = 256 << 20
    """Maximum number of files, and of their bytes in total."""
    each: int = 64
    """Runs that one address may share in an hour, enough for two classes behind one router."""
    _recent: list[tuple[float, str]] = field(default_factory=list)
    """Time and address of each sharing within an hour."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, key: str, owner: str) -> str:
        """Keep a stored run that is over, and return until when. ``owner`` is the address of the request. Raises BadInput."""
        text, now = self.store.text(key), time.time()
        if traces.outline(self.store.lines(key)).end is None:
            raise BadInput("This run is not over yet. Share it once it has ended.")
        with self._lock:
            self._recent = [one for one in self._recent if one[0] > now - HOUR]
            if not self.days or len(text) > LARGEST or sum(owner == other for _, other in self._recent) >= self.each:
                raise BadInput(
                    f"The app keeps runs of at most {LARGEST // 1_000_000} MB for {self.days} days, {self.each} an hour from one "
                    "address, and this one exceeds that. Save the run's file under Traces instead."
                )
            self._recent.append((now, owner))
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            traces.save(text, self.folder / f"{key}{SUFFIX}")
            self._sweep()
        return self.until(key)

    def restore(self, key: str) -> None:
        """Read a run back into the store, and note that it was opened. Raises BadInput if it is not kept, or no longer."""
        with self._lock:
            path = self._sweep().get(f"{key}{SUFFIX}")
            if path is None:
                raise BadInput(
                    f"The run of this link is no longer kept here. A shared run is deleted after {self.days} days, or earlier if "
                    "newer ones need its room; whoever saved its trace file can open that under Traces."
                )
            os.utime(path, (time.time(), path.stat().st_mtime))
        if key not in self.store:
            self.store.new(traces.rewritten(traces.unpacked(path)), checked=True, key=key)

    def until(self, key: str) -> str:
        """Return the time at which a run is deleted, for a reader; empty if it is not shared."""
        path = self.folder / f"{key}{SUFFIX}"
        if not path.exists():
            return ""
        return f"{datetime.fromtimestamp(path.stat().st_mtime + self.days * DAY, UTC):%d %B %Y, %H:%M} UTC".lstrip("0")

    def _sweep(self) -> dict[str, Path]:
        """Delete what has expired or exceeds the bounds, and return the other files by name."""
        size, files = 0, dict[str, Path]()
        for path in sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda path: -path.stat().st_atime):
            facts = path.stat()
            size += facts.st_size
            if len(files) < self.most_runs and size <= self.most_bytes and facts.st_mtime + self.days * DAY > time.time():
                files[path.name] = path
            else:
                path.unlink()
        return files
