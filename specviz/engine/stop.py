"""Cancellation of a run by the user or a time limit, even during a long prefill."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specviz.errors import SpecvizError

Limit = Callable[[], tuple[float, str]]
"""Function that returns the current limit on a run's computing time in seconds, and a sentence with the reason."""


def unlimited() -> tuple[float, str]:
    """Return an infinite limit."""
    return math.inf, ""


class Stop(threading.Event):
    """Cancellation flag with a time limit.

    The computing thread calls ``is_set`` between steps, so the limit needs no timer thread. ``reason``: sentence about the limit
    if it was reached, "" after a plain ``set``.
    """

    def __init__(self, limit: Limit = unlimited, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limit = limit
        self._clock = clock
        self._now, self._since = unlimited, 0.0
        self._begun = False
        self.reason = ""

    def prepare(self, limit: Limit) -> None:
        """Apply ``limit``, counted from now, to fetching and loading until the run begins."""
        self._now, self._since = limit, self._clock()

    def begin(self) -> None:
        """Start counting the run's time. Earlier time, such as for fetching a model, is not charged to the run."""
        if not self._begun:
            self._begun = True
            self.prepare(self._limit)

    def is_set(self) -> bool:
        """Whether the run must end."""
        return not self.has_time_for(0.0)

    def halfway(self) -> bool:
        """Whether the run must end or half of its time is used up, at which point warm-up decoding stops."""
        return self.is_set() or self._clock() - self._since > self._now()[0] / 2

    def has_time_for(self, seconds: float) -> bool:
        """Stop the run if fewer than ``seconds`` are left. Returns whether it continues."""
        limit, reason = self._now()
        if not super().is_set() and self._clock() - self._since + seconds > limit:
            self.reason = reason
            self.set()
        return not super().is_set()


class Interrupted(BaseException):
    """Raised when the current thread's run must end.

    Derives from BaseException, like KeyboardInterrupt, so that ``except Exception`` blocks do not swallow it.
    """


class Stopped(SpecvizError):
    """Raised when a run is stopped before it begins."""


NOTHING_RUN = "Stopped before the first step; nothing was run."

ProgressHook = Callable[[int, int], None]
"""Function that receives the number of tokens prefilled so far, and the total."""

LOOK_SECONDS = 0.1
"""Interval at which a waiting thread checks whether its run was stopped."""

PATIENCE_SECONDS = 60.0
"""Maximum time to wait for a stopped run that is still computing."""


class _Thread(threading.local):
    """State of a thread: flags that stop it, progress hook, and the lock that it holds while computing."""

    cancels: tuple[threading.Event, ...] = ()
    hook: ProgressHook | None = None
    lock: threading.Lock | None = None
    holds = False


_THREAD = _Thread()


@contextmanager
def stoppable(cancel: threading.Event) -> Iterator[None]:
    """Make :func:`heed` raise Interrupted in this thread once ``cancel``, or the flag of an enclosing block, is set."""
    outer = _THREAD.cancels
    _THREAD.cancels = (*outer, cancel)
    try:
        yield
    finally:
        _THREAD.cancels = outer


def heed() -> None:
    """Raise Interrupted if this thread's run must end. Called between units of work."""
    if any(cancel.is_set() for cancel in _THREAD.cancels):
        raise Interrupted


@contextmanager
def computing(lock: threading.Lock, progress: Callable[[str, float | None], None]) -> Iterator[None]:
    """Hold ``lock``, except during :func:`waiting`, so that only one thread computes at a time.

    Raises Interrupted, or SpecvizError if a stopped run does not end.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while not lock.acquire(timeout=LOOK_SECONDS):
        heed()
        progress("Waiting for a stopped run that is still computing", None)
        if time.monotonic() > until:
            raise SpecvizError("A stopped run is still computing. Try again in a minute; recorded runs still play.")
    _THREAD.lock, _THREAD.holds = lock, True
    try:
        yield
    finally:
        _leave()
        _THREAD.lock = None


def _leave() -> None:
    if _THREAD.lock and _THREAD.holds:
        _THREAD.holds = False
        _THREAD.lock.release()


@contextmanager
def waiting() -> Iterator[None]:
    """Let other threads compute while this thread waits for a network, a process or a lock.

    Raises Interrupted on exit if the run was stopped during the wait.
    """
    held = _THREAD.holds
    _leave()
    yield
    heed()
    if held and _THREAD.lock:
        while not _THREAD.lock.acquire(timeout=LOOK_SECONDS):
            heed()
        _THREAD.holds = True


@contextmanager
def locked(lock: threading.Lock | threading.RLock) -> Iterator[None]:
    """Hold ``lock``. While this thread waits for the lock, other threads may compute.

    Raises Interrupted if this thread's run is stopped.
    """
    held = lock.acquire(blocking=False)
    try:
        if not held:
            with waiting():
                while not (held := lock.acquire(timeout=LOOK_SECONDS)):
                    heed()
        yield
    finally:
        if held:
            lock.release()


@contextmanager
def on_prefill_progress(hook: ProgressHook) -> Iterator[None]:
    """Call ``hook`` between the chunks of long prefills in this thread."""
    outer, _THREAD.hook = _THREAD.hook, hook
    try:
        yield
    finally:
        _THREAD.hook = outer


def chunks(total: int, size: int | Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each chunk of ``total`` tokens, for a prefill in several passes.

    ``size``: maximum chunk size, or a function that returns it for the chunk's start. Raises Interrupted if the run was stopped.
    """
    start = 0
    while start < total:
        end = min(total, start + (size if isinstance(size, int) else size(start)))
        heed()
        if _THREAD.hook and (start or end < total):
            _THREAD.hook(start, total)
        yield start, end
        start = end
