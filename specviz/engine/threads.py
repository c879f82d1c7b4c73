"""Number of processor threads of a run, reduced when other programs keep them waiting for a core.

OpenMP's threads spin while they wait for each other. That is fastest on idle cores and ruinous on busy ones: a thread that
lost its core delays all the others, hundreds of times per pass. No wait policy or spin count is fast in both cases (figures in
.github/RESULTS.md, measured by ``bench --suite contention``), so the number of threads follows the load.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

WINDOW = 0.2
"""Seconds over which waiting is measured."""

TOLERATED = 0.25
"""Largest summed wait of this process's threads for a core, as a fraction of a window. Measured on two cores: 0.01 to 0.04
with nothing else running, 1.0 with a busy loop on each core."""

_TASKS = Path("/proc/self/task")

_OF_THREAD = threading.local()  # OpenMP's thread count is per thread too


class ThreadLimit:
    """Number of threads one request computes with, halved after two consecutive windows of waiting for a core.

    It is restored only when the ``with`` block ends, since a run and its baseline must use the same number.
    """

    def __init__(self) -> None:
        self.full = torch.get_num_threads()
        self.now = self.full
        self.share = 0.0
        """Summed wait of all threads as a fraction of the last window."""
        self._warned = False
        self._restart()

    def __enter__(self) -> ThreadLimit:
        _OF_THREAD.limit = self
        return self

    def __exit__(self, *problem: object) -> None:
        _OF_THREAD.limit = None
        if self.now != self.full:
            torch.set_num_threads(self.full)

    @property
    def caveat(self) -> str:
        """Caveat for readers of the timings; empty if the number of threads was not reduced."""
        if self.now == self.full:
            return ""
        return (
            f"Other programs kept this run waiting for a core, so it continued with {self.now} of {self.full} processor threads: "
            "its times, and its baseline's, are those of a busy machine."
        )

    def adjust(self) -> None:
        """Measure how long threads waited since the last window, and lower their number if needed; called between passes."""
        elapsed = time.perf_counter() - self._since
        if elapsed < WINDOW:
            return
        # Below zero once a thread that waited has ended.
        self.share = max(0.0, waiting_seconds() - self._waited) / elapsed
        if self.share <= TOLERATED or self.now == 1:
            self._warned = False
        elif not self._warned:
            self._warned = True
        else:
            self.now, self._warned = self.now // 2, False
            torch.set_num_threads(self.now)
        self._restart()

    def _restart(self) -> None:
        self._since, self._waited = time.perf_counter(), waiting_seconds()


def waiting_seconds() -> float:
    """Seconds, summed over this process's threads, spent ready to run without a core.

    Linux counts this time; on other systems it is 0, and the number of threads is never reduced.
    """
    total = 0
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        with suppress(OSError, IndexError):  # a thread that has just ended, or a kernel without these statistics
            total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9


def contention() -> float:
    """Fraction of the last window that threads waited for a core, by this thread's :class:`ThreadLimit`; 0 without a limit."""
    limit = getattr(_OF_THREAD, "limit", None)
    return 0.0 if limit is None else limit.share


def adjust() -> None:
    """Call :meth:`ThreadLimit.adjust` of this thread's limit, if any."""
    limit = getattr(_OF_THREAD, "limit", None)
    if limit is not None:
        limit.adjust()
