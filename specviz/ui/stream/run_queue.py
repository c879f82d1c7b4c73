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
"""Runs whose durations say how long the next ones take."""


class LineFull(SpecvizError):
    """Nobody else may wait."""


class Ticket:
    """One place in the line, held from asking until the run is over. ``leave`` may be called more than once."""

    def __init__(self, line: RunQueue, kind: str) -> None:
        self._line = line
        self.kind = kind
        self.started: float | None = None

    @property
    def ahead(self) -> int:
        """Runs that come before this one; 0 means it is this one's turn."""
        return self._line.position(self)

    @property
    def seconds(self) -> float | None:
        """About how long it takes until it is this one's turn, by how long recent ones of the kinds ahead took; None where
        nobody can know."""
        return self._line.expected(self)

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for this ticket's turn. True when it has come."""
        return self._line.wait(self, seconds)

    def start(self) -> None:
        """The run begins now, which is what its duration counts from."""
        self.started = self._line.clock()

    def leave(self) -> None:
        """Give the place to the next one."""
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
        """Take a place; work of one ``kind`` takes about as long. Raises LineFull, saying how many wait and what to do."""
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
        """Runs that wait behind the one whose turn it is."""
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
        """Seconds that this one still takes, by recent ones of its kind, or where it takes longer than usual by those that did;
        not a number where there are none."""
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
