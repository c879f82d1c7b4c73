"""Queue in front of the engine: one run at a time, a bounded number waiting, each with the number ahead."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from specviz.errors import SpecvizError

RECENT = 9
"""Number of latest runs whose durations predict those of the next ones."""


class LineFull(SpecvizError):
    """The queue is full."""


class Ticket:
    """One place in the queue, held from the request until the run is over. ``leave`` may be called more than once."""

    def __init__(self, line: RunQueue, kind: str) -> None:
        self._line = line
        self.kind = kind
        self.started: float | None = None

    @property
    def ahead(self) -> int:
        """Number of runs before this one; 0 means that it is this one's turn."""
        return self._line.position(self)

    @property
    def seconds(self) -> float | None:
        """Estimated seconds until this one's turn, from recent durations of the kinds ahead; None if unknown."""
        return self._line.expected(self)

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for this ticket's turn. Returns whether it has come."""
        return self._line.wait(self, seconds)

    def start(self) -> None:
        """Mark the start of the run, from which its duration counts."""
        self.started = self._line.clock()

    def leave(self) -> None:
        """Release the place to the next one."""
        self._line.drop(self)


class RunQueue:
    """First come, first served."""

    def __init__(self, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.waiting = waiting
        self.clock = clock
        self._tickets: list[Ticket] = []
        self._recent: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._moved = threading.Condition()

    def join(self, kind: str = "run") -> Ticket:
        """Join the queue; work of one ``kind`` takes similarly long. Raises LineFull with the number waiting and a remedy."""
        with self._moved:
            if len(self._tickets) > self.waiting:
                raise LineFull(
                    f"The engine is busy, and {self.waiting} more {'run' if self.waiting == 1 else 'runs'} waiting for it "
                    "is all there is room for. Try again in a minute; recorded runs play without waiting."
                )
            ticket = Ticket(self, kind)
            self._tickets.append(ticket)
            return ticket

    @property
    def behind(self) -> int:
        """Number of runs that wait after the one whose turn it is."""
        return max(0, len(self._tickets) - 1)

    def position(self, ticket: Ticket) -> int:
        with self._moved:
            return self._tickets.index(ticket)

    def expected(self, ticket: Ticket) -> float | None:
        with self._moved:
            ahead = self._tickets[: self._tickets.index(ticket)]
            seconds = sum(map(self._left, ahead))
            return None if math.isnan(seconds) else seconds

    def _left(self, ticket: Ticket) -> float:
        """Estimated seconds left, from recent runs of the ticket's kind; past their median, from those that took longer than
        this one so far. NaN without such runs."""
        spent = 0.0 if ticket.started is None else self.clock() - ticket.started
        recent = list(self._recent[ticket.kind])
        if recent and spent > statistics.median(recent):
            recent = [seconds for seconds in recent if seconds > spent]
        return statistics.median(recent) - spent if recent else math.nan

    def wait(self, ticket: Ticket, seconds: float) -> bool:
        with self._moved:
            self._moved.wait_for(lambda: self._tickets[0] is ticket, seconds)
            return self._tickets[0] is ticket

    def drop(self, ticket: Ticket) -> None:
        with self._moved:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
                if ticket.started is not None:
                    self._recent[ticket.kind].append(self.clock() - ticket.started)
                self._moved.notify_all()
