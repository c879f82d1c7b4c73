"""Processor threads of a run: fewer for as long as other programs keep interrupting them.

OpenMP's threads wait for each other awake. That is the fastest way on idle cores, and ruinous on busy ones: a thread that
lost its core holds up all the others, hundreds of times a pass. Neither a passive wait policy nor any spin count has both (the
figures are in bench/RESULTS.md, measured by ``bench --suite contention``), so the number of threads follows the load.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

import torch

try:
    import resource
except ImportError:  # Windows, whose OpenMP does not wait awake
    resource = None  # type: ignore[assignment]

WINDOW = 0.1
"""Seconds over which interruptions are counted."""

TOLERATED = 90.0
"""Interruptions a second and thread. Idle machines show up to 40; two programs with as many threads as cores 140."""

_OF_THREAD = threading.local()  # as OpenMP's own number of threads is


class ThreadLimit:
    """The threads one request computes with, halved whenever they have been interrupted for two windows running.

    Once lower they stay so until the ``with`` block ends: a run and its baseline have to compute alike.
    """

    def __init__(self) -> None:
        self.full = torch.get_num_threads()
        self.now = self.full
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
            f"Other programs kept interrupting this run, so it went on with {self.now} of {self.full} processor threads: "
            "its times, and its baseline's, are those of a busy machine."
        )

    def look(self) -> None:
        """Count interruptions since the last window; called between passes."""
        if self.now == 1 or resource is None:
            return
        elapsed = time.perf_counter() - self._since
        if elapsed < WINDOW:
            return
        rate = (interruptions() - self._count) / elapsed / self.now
        if rate <= TOLERATED:
            self._warned = False
        elif not self._warned:
            self._warned = True
        else:
            self.now, self._warned = self.now // 2, False
            torch.set_num_threads(self.now)
        self._restart()

    def _restart(self) -> None:
        self._since, self._count = time.perf_counter(), interruptions()


def interruptions() -> int:
    """How often the threads of this process have lost their core to another one."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def look() -> None:
    """Have the :class:`ThreadLimit` of this thread look, where there is one."""
    limit = getattr(_OF_THREAD, "limit", None)
    if limit is not None:
        limit.look()
