"""Runs that visitors share by link: trace files in a bounded folder, deleted after some days.

A file is named by the run's key in the store, which cannot be guessed, so a link gives access to a single run. Above the bounds,
the least recently opened files are deleted.
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
"""Maximum length of a trace in characters."""
SUFFIX = traces.SUFFIX + traces.PACKED


@dataclass(eq=False)
class SharedRuns:
    """Files of shared runs. The modification time of a file is the time of sharing, the access time that of the last opening."""

    store: TraceStore
    folder: Path
    days: int
    most_runs: int = 1000
    most_bytes: int = 256 << 20
    """Maximum size of the files in bytes."""
    each: int = 64
    """Maximum number of runs shared per hour and address, enough for two classes behind one router."""
    _recent: list[tuple[float, str]] = field(default_factory=list)
    """Time and address of the runs shared within an hour."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, key: str, owner: str) -> str:
        """Save a completed run and return the time of deletion, as from :meth:`until`.

        ``owner``: address of the visitor. Raises BadInput if the run is incomplete or exceeds the limits.
        """
        text, now = self.store.text(key), time.time()
        if not traces.outline(self.store.lines(key)).end:
            raise BadInput("This run is not over yet. Share it once it has ended.")
        with self._lock:
            self._recent = [one for one in self._recent if one[0] > now - HOUR]
            if not self.days or len(text) > LARGEST or sum(owner == other for _, other in self._recent) >= self.each:
                raise BadInput(
                    f"The app keeps runs of at most {LARGEST // 1_000_000} MB for {self.days} days, {self.each} per hour from "
                    "one address, and this one exceeds that. Save the run's file under Traces instead."
                )
            self._recent.append((now, owner))
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            traces.save(text, self.folder / f"{key}{SUFFIX}")
            self._sweep()
        return self.until(key)

    def restore(self, key: str) -> None:
        """Load a shared run into the store and update the access time. Raises BadInput if the run does not exist."""
        with self._lock:
            path = self._sweep().get(f"{key}{SUFFIX}")
            if not path:
                raise BadInput(
                    f"The run of this link is no longer kept here. A shared run is deleted after {self.days} days, or earlier if "
                    "newer ones need the space. If you saved its trace file, open that under Traces."
                )
            os.utime(path, (time.time(), path.stat().st_mtime))
        if key not in self.store:
            self.store.new(traces.rewritten(traces.unpacked(path)), checked=True, key=key)

    def until(self, key: str) -> str:
        """Return the time of a run's deletion as text; empty if the run is not shared."""
        path = self.folder / f"{key}{SUFFIX}"
        if key not in self.store or not path.exists():  # a page may send any text as a run's name
            return ""
        return f"{datetime.fromtimestamp(path.stat().st_mtime + self.days * DAY, UTC):%d %B %Y, %H:%M} UTC".lstrip("0")

    def _sweep(self) -> dict[str, Path]:
        """Delete files that have expired or exceed the bounds, and return the others by name."""
        size, files = 0, dict[str, Path]()
        for path in sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda path: -path.stat().st_atime):
            facts = path.stat()
            size += facts.st_size
            if len(files) < self.most_runs and size <= self.most_bytes and facts.st_mtime + self.days * DAY > time.time():
                files[path.name] = path
            else:
                path.unlink()
        return files
