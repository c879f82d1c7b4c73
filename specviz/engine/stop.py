"""Stop conditions from outside a run: whoever asked for it, or the clock; also in the middle of a long prompt."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Limit = Callable[[], tuple[float, str]]
"""Most seconds a run may compute, as things stand now, and a sentence on why. It may change while the run goes on."""


def unlimited() -> tuple[float, str]:
    """The limit of a run that has none."""
    return math.inf, ""


class Stop(threading.Event):
    """A cancellation flag with a time limit.

    Whoever computes asks ``is_set`` between two steps, so the limit needs no thread of its own. ``why`` is empty after a
    plain ``set``, and says what the limit was when that was reached.
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

    def spare(self, seconds: float) -> bool:
        """Whether that much time is left for what comes next; if not, the run ends here instead of past its limit."""
        if not self.is_set() and self._spent() + seconds > self._limit()[0]:
            self.why = self._limit()[1]
            self.set()
        return not self.is_set()

    def _spent(self) -> float:
        return 0.0 if self._began is None else self._clock() - self._began


def why(cancel: threading.Event) -> str:
    """The limit that ended a run; empty when somebody stopped it."""
    return cancel.why if isinstance(cancel, Stop) else ""


class Interrupted(Exception):
    """A run was stopped while a prompt was being read for it."""


Look = Callable[[int, int], None]
"""Told how many tokens of how many have been read. Raises Interrupted where no more is wanted."""

_OF_THREAD = threading.local()


@contextmanager
def watched(look: Look) -> Iterator[None]:
    """Have ``look`` called between the pieces of every long text that this thread reads until the ``with`` block ends."""
    outer = getattr(_OF_THREAD, "look", None)
    _OF_THREAD.look = look
    try:
        yield
    finally:
        _OF_THREAD.look = outer


def pieces(total: int, size: int | Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Start and end of the pieces of ``total`` tokens, for whoever reads a text in several passes. ``size`` is the most that a
    piece may have, or says so for the piece that starts at a token.

    Raises Interrupted before a piece that nobody wants any more; a text of one piece is read without asking.
    """
    start = 0
    while start < total:
        end = min(total, start + (size if isinstance(size, int) else size(start)))
        look = getattr(_OF_THREAD, "look", None)
        if look is not None and (start or end < total):
            look(start, total)
        yield start, end
        start = end
