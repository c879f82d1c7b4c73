"""Stop conditions from outside a run: its user, or the clock; also in the middle of a long prompt."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from specviz.errors import SpecvizError

Limit = Callable[[], tuple[float, str]]
"""Most seconds a run may compute, as things stand now, and a sentence on why. It may change while the run goes on."""


def unlimited() -> tuple[float, str]:
    """The limit of a run that has none."""
    return math.inf, ""


class Stop(threading.Event):
    """A cancellation flag with a time limit.

    The computing thread asks ``is_set`` between two steps, so the limit needs no thread of its own. ``why`` is empty after a
    plain ``set``, and names the limit where that was reached.
    """

    def __init__(self, limit: Limit = unlimited, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limit = limit
        self._clock = clock
        self._began: float | None = None
        self._preparing: tuple[Limit, float] | None = None
        self.why = ""

    def prepare(self, limit: Limit) -> None:
        """Until the run begins, ``limit`` holds for fetching and loading, counted from now on."""
        self._preparing = limit, self._clock()

    def begin(self) -> None:
        """The time counts from now on: what comes before, such as fetching a model, serves everybody."""
        if self._began is None:
            self._began = self._clock()

    def is_set(self) -> bool:
        """Whether the run is to end."""
        if not super().is_set():
            if self._began is None and self._preparing is not None:
                (seconds, why), spent = self._preparing[0](), self._clock() - self._preparing[1]
            else:
                (seconds, why), spent = self._limit(), self._spent()
            if spent > seconds:
                self.why = why
                self.set()
        return super().is_set()

    def halfway(self) -> bool:
        """Whether half of the time is used up, or the run is to end: what only prepares a run has to stop here."""
        return self.is_set() or self._spent() > self._limit()[0] / 2

    def has_time_for(self, seconds: float) -> bool:
        """Whether that much time is left for what comes next; if not, the run ends here instead of past its limit."""
        if not self.is_set() and self._spent() + seconds > self._limit()[0]:
            self.why = self._limit()[1]
            self.set()
        return not self.is_set()

    def _spent(self) -> float:
        return 0.0 if self._began is None else self._clock() - self._began


def stop_reason(cancel: threading.Event) -> str:
    """The limit that ended a run; empty when a user stopped it."""
    return cancel.why if isinstance(cancel, Stop) else ""


class Interrupted(BaseException):
    """The run that a thread works for is to end. No ``Exception``, as KeyboardInterrupt is none: code that turns faults of a
    library or of a stranger's file into sentences must not take a stop for one of them."""


class Stopped(SpecvizError):
    """A run was stopped before it began."""


NOTHING_RUN = "Stopped before the first step; nothing was run."

ProgressHook = Callable[[int, int], None]
"""Hears how many tokens of how many have been read."""

LOOK_SECONDS = 0.1
"""Between two looks of a thread that waits at whether its run is still wanted."""

PATIENCE_SECONDS = 60.0
"""How long a run waits for one that was stopped and still computes."""


class _Thread(threading.local):
    """What a thread works for: the flags that end it, who hears of its progress, the lock that it holds while it computes."""

    cancels: tuple[threading.Event, ...] = ()
    look: ProgressHook | None = None
    lock: threading.Lock | None = None
    holds = False


_THREAD = _Thread()


@contextmanager
def stoppable(cancel: threading.Event) -> Iterator[None]:
    """Inside, :func:`heed` raises Interrupted once ``cancel`` or that of an outer block is set, in this thread alone."""
    outer = _THREAD.cancels
    _THREAD.cancels = (*outer, cancel)
    try:
        yield
    finally:
        _THREAD.cancels = outer


def heed() -> None:
    """Raise Interrupted where this thread's run is to end. Every phase asks between two units of its work."""
    if any(cancel.is_set() for cancel in _THREAD.cancels):
        raise Interrupted


@contextmanager
def computing(lock: threading.Lock, progress: Callable[[str, float | None], None]) -> Iterator[None]:
    """Hold ``lock`` inside, but for what stands under :func:`waiting`: of the threads that share it one computes at a time.

    Raises Interrupted, or a SpecvizError where a run that was stopped does not come to its end.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while not lock.acquire(timeout=LOOK_SECONDS):
        heed()
        progress("Waiting for a run that was stopped and is still computing", None)
        if time.monotonic() > until:
            raise SpecvizError("A run that was stopped is still computing. Try again in a minute; recorded runs play meanwhile.")
    _THREAD.lock, _THREAD.holds = lock, True
    try:
        yield
    finally:
        _leave()
        _THREAD.lock = None


def _leave() -> None:
    if _THREAD.lock is not None and _THREAD.holds:
        _THREAD.holds = False
        _THREAD.lock.release()


@contextmanager
def waiting() -> Iterator[None]:
    """Inside, this thread waits for a network, a process or a lock, and others may compute. Raises Interrupted at the end where
    the run is to end, so that what was stopped meanwhile computes no more."""
    held = _THREAD.holds
    _leave()
    yield
    heed()
    if held and _THREAD.lock is not None:
        while not _THREAD.lock.acquire(timeout=LOOK_SECONDS):
            heed()
        _THREAD.holds = True


class Lock(Protocol):
    """A lock of ``threading``, of either kind."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


@contextmanager
def locked(lock: Lock) -> Iterator[None]:
    """``lock`` held inside, waited for only as long as this thread's run is wanted, and without keeping others from computing."""
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
def on_prefill_progress(look: ProgressHook) -> Iterator[None]:
    """Have ``look`` called between the pieces of every long text that this thread reads until the ``with`` block ends."""
    outer, _THREAD.look = _THREAD.look, look
    try:
        yield
    finally:
        _THREAD.look = outer


def chunks(total: int, size: int | Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Start and end of the pieces of ``total`` tokens, for reading a text in several passes. ``size`` is the most that a
    piece may have, or says so for the piece that starts at a token.

    Raises Interrupted before a piece that nobody wants any more.
    """
    start = 0
    while start < total:
        end = min(total, start + (size if isinstance(size, int) else size(start)))
        heed()
        if _THREAD.look is not None and (start or end < total):
            _THREAD.look(start, total)
        yield start, end
        start = end
