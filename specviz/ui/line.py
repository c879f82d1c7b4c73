"""The line in front of the engine: one run at a time, a bounded number waiting, everybody told how many are ahead."""

from __future__ import annotations

import threading

from specviz.errors import SpecvizError


class LineFull(SpecvizError):
    """Nobody else may wait."""


class Ticket:
    """One place in the line, held from asking until the run is over. ``leave`` may be called more than once."""

    def __init__(self, line: Line) -> None:
        self._line = line

    @property
    def ahead(self) -> int:
        """Runs that come before this one; 0 means it is this one's turn."""
        return self._line.position(self)

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for something to move. True when it is this ticket's turn."""
        return self._line.wait(self, seconds)

    def leave(self) -> None:
        """Give the place to the next one."""
        self._line.drop(self)


class Line:
    """First come, first served."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self._tickets: list[Ticket] = []
        self._moved = threading.Condition()

    def join(self) -> Ticket:
        """Take a place. Raises LineFull, saying how many wait and what to do meanwhile."""
        with self._moved:
            if len(self._tickets) > self.waiting:
                raise LineFull(
                    f"The engine is busy, and {self.waiting} more {'run' if self.waiting == 1 else 'runs'} waiting for it "
                    "is all there is room for. Try again in a minute; recorded runs play without waiting."
                )
            ticket = Ticket(self)
            self._tickets.append(ticket)
            return ticket

    def position(self, ticket: Ticket) -> int:
        with self._moved:
            return self._tickets.index(ticket)

    def wait(self, ticket: Ticket, seconds: float) -> bool:
        with self._moved:
            self._moved.wait_for(lambda: self._tickets[0] is ticket, seconds)
            return self._tickets[0] is ticket

    def drop(self, ticket: Ticket) -> None:
        with self._moved:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
                self._moved.notify_all()
