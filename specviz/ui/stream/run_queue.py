"""Queue in front of the engine: one run at a time, a bounded number waiting, each with the number ahead."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from specviz.errors import SpecvizError

RECENT = 9
"""Number of latest runs whose durations predict those of the next ones."""


class LineFull(SpecvizError):
    """The queue is full."""


@dataclass(eq=False)
class Ticket:
    """One place in the queue, held from the request until the run is over. ``leave`` may be called more than once."""

    queue: RunQueue
    kind: str
    started: float | None = None

    @property
    def ahead(self) -> list[Ticket]:
        """The tickets before this one; none when it is this one's turn."""
        with self.queue.changed:
            return self.queue.tickets[: self.queue.tickets.index(self)]

    @property
    def seconds(self) -> float | None:
        """Estimated seconds until this one's turn, from recent durations of the kinds ahead; None if unknown."""
        seconds = sum(ticket.left for ticket in self.ahead)
        return None if math.isnan(seconds) else seconds

    @property
    def left(self) -> float:
        """Estimated seconds left, from recent runs of this kind; past their median, from those that took longer than this one so
        far. NaN without such runs."""
        spent = 0.0 if self.started is None else self.queue.clock() - self.started
        recent = list(self.queue.recent[self.kind])
        if recent and spent > statistics.median(recent):
            recent = [seconds for seconds in recent if seconds > spent]
        return statistics.median(recent) - spent if recent else math.nan

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for this ticket's turn. Returns whether it has come."""
        with self.queue.changed:
            return self.queue.changed.wait_for(lambda: self.queue.tickets[0] is self, seconds)

    def start(self) -> None:
        """Mark the start of the run, from which its duration counts."""
        self.started = self.queue.clock()

    def leave(self) -> None:
        """Release the place to the next one."""
        with self.queue.changed:
            if self in self.queue.tickets:
                self.queue.tickets.remove(self)
                if self.started is not None:
                    self.queue.recent[self.kind].append(self.queue.clock() - self.started)
                self.queue.changed.notify_all()


@dataclass(eq=False)
class RunQueue:
    """First come, first served."""

    waiting: int
    clock: Callable[[], float] = time.monotonic
    tickets: list[Ticket] = field(default_factory=list)
    recent: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=RECENT)))
    """Durations of the latest runs of each kind."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def join(self, kind: str = "run") -> Ticket:
        """Join the queue; work of one ``kind`` takes similarly long. Raises LineFull with the number waiting and a remedy."""
        with self.changed:
            if len(self.tickets) > self.waiting:
                raise LineFull(
                    f"The engine is busy, and {self.waiting} more {'run' if self.waiting == 1 else 'runs'} waiting for it "
                    "is all there is room for. Try again in a minute; recorded runs play without waiting."
                )
            ticket = Ticket(self, kind)
            self.tickets.append(ticket)
            return ticket

    @property
    def behind(self) -> int:
        """Number of runs that wait after the one whose turn it is."""
        return max(0, len(self.tickets) - 1)
