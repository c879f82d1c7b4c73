"""Number of CPU threads of a run, lowered when other programs keep the threads waiting for a core.

OpenMP threads spin while they wait for each other. On busy cores, a thread that lost its core then delays all the others,
hundreds of times per pass. No wait policy or spin count is fast on both idle and busy cores (.github/RESULTS.md, ``bench --suite
contention``). The number of threads therefore follows the load.
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
"""Largest tolerated wait for a core, summed over threads, as a fraction of a window. On two cores, 0.01 to 0.04 is measured when
idle and 1.0 with a busy loop on each core."""

_TASKS = Path("/proc/self/task")

_OF_THREAD = threading.local()  # OpenMP's thread count is per thread


class ThreadLimit:
    """Number of threads for one request, halved after two consecutive windows of waiting for a core.

    The number is restored only at the end of the ``with`` block, because a run and its baseline must use the same number.
    """

    def __init__(self) -> None:
        self.full = torch.get_num_threads()
        self.now = self.full
        self.share = 0.0
        """Wait summed over threads, as a fraction of the last window."""
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
        """Sentence for readers of the timings; "" if the number of threads was not lowered."""
        if self.now == self.full:
            return ""
        return (
            f"Other programs kept this run waiting for a core, so the run continued with {self.now} of {self.full} CPU threads. "
            "Its times and its baseline's are those of a busy machine."
        )

    def adjust(self) -> None:
        """Measure the wait since the last window, and lower the number of threads if needed. Called between passes."""
        elapsed = time.perf_counter() - self._since
        if elapsed < WINDOW:
            return
        # negative after a thread that waited has ended
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
    """Seconds that this process's threads spent ready to run without a core, summed over threads.

    Only Linux counts this time. On other systems it is 0, and the number of threads stays unchanged.
    """
    total = 0
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        with suppress(OSError, IndexError):  # the thread has just ended, or the kernel has no such statistics
            total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9


def contention() -> float:
    """Fraction of the last window that threads waited for a core, from this thread's :class:`ThreadLimit`; 0 without one."""
    limit = getattr(_OF_THREAD, "limit", None)
    return 0.0 if limit is None else limit.share


def adjust() -> None:
    """Call :meth:`ThreadLimit.adjust` of this thread's limit, if any."""
    limit = getattr(_OF_THREAD, "limit", None)
    if limit is not None:
        limit.adjust()
