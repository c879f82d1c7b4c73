"""Processor threads of a run: fewer where other programs keep them waiting for a core.

OpenMP's threads wait for each other awake. That is the fastest way on idle cores, and ruinous on busy ones: a thread that
lost its core holds up all the others, hundreds of times a pass. Neither a passive wait policy nor any spin count has both (the
figures are in .github/RESULTS.md, measured by ``bench --suite contention``), so the number of threads follows the load.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch

WINDOW = 0.2
"""Seconds over which waiting is counted."""

TOLERATED = 0.25
"""Of a window: how long the threads of this process, taken together, may have waited for a core. Measured on two cores:
0.01 to 0.04 with nothing else running, 1.0 beside a busy loop on each."""

_TASKS = Path("/proc/self/task")

_OF_THREAD = threading.local()  # as OpenMP's own number of threads is


class ThreadLimit:
    """The threads one request computes with, halved whenever they have waited for a core in two windows running.

    Once lower they stay so until the ``with`` block ends: a run and its baseline have to compute alike.
    """

    def __init__(self) -> None:
        self.full = torch.get_num_threads()
        self.now = self.full
        self.share = 0.0
        """Of the last window: how long threads waited, taken together."""
        self._warned = False
        self._restart()

    def __enter__(self) -> ThreadLimit:
        _OF_THREAD.limit = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _OF_THREAD.limit = None
        if self.now != self.full:
            torch.set_num_threads(self.full)

    @property
    def sentence(self) -> str:
        """What a reader of the timings has to know; empty where all threads stayed."""
        if self.now == self.full:
            return ""
        return (
            f"Other programs kept this run waiting for a core, so it went on with {self.now} of {self.full} processor threads: "
            "its times, and its baseline's, are those of a busy machine."
        )

    def look(self) -> None:
        """Count how long threads have waited since the last window; called between passes."""
        elapsed = time.perf_counter() - self._since
        if elapsed < WINDOW:
            return
        self.share = (waited() - self._waited) / elapsed if elapsed else 0.0
        if self.share <= TOLERATED or self.now == 1:
            self._warned = False
        elif not self._warned:
            self._warned = True
        else:
            self.now, self._warned = self.now // 2, False
            torch.set_num_threads(self.now)
        self._restart()

    def _restart(self) -> None:
        self._since, self._waited = time.perf_counter(), waited()


def waited() -> float:
    """Seconds that the threads of this process, taken together, have been ready to run and had no core.

    Linux counts them; elsewhere it is 0 and all threads stay.
    """
    total = 0
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        with suppress(OSError, IndexError):  # a thread that has just ended, or a kernel that keeps no such account
            total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9


def contention() -> float:
    """Of the last window of this thread's :class:`ThreadLimit`: how long threads waited for a core; 0 where there is none."""
    limit = getattr(_OF_THREAD, "limit", None)
    return 0.0 if limit is None else limit.share


def look() -> None:
    """Have the :class:`ThreadLimit` of this thread look, where there is one."""
    limit = getattr(_OF_THREAD, "limit", None)
    if limit is not None:
        limit.look()
