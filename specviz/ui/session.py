"""State of one page's session: what may be stopped and what earlier runs left. Forgotten on leaving."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from specviz.engine.stop import Limit, Stop, unlimited
from specviz.errors import BadInput, SpecvizError
from specviz.pipeline.request import Memory

MOST_PAGES = 256
"""Pages whose earlier runs the server remembers; beyond it the one idle for longest is forgotten."""

MOST_EACH = 40
"""Of these, pages of one address; the app gives two thirds of its line, which a class behind one router fits into."""

PATIENCE = 3.0
"""Seconds that a page waits for a run it leaves; a run still loading its model may take longer to notice."""


@dataclass
class PageSession:
    """What belongs to one open page. ``cancel`` ends the run that is going on, ``over`` is set when it has been shown."""

    address: str = ""
    memory: Memory = field(default_factory=Memory)
    cancel: Stop | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def running(self) -> bool:
        """Whether a run of this page waits or goes on."""
        return self.cancel is not None and not self.over.is_set()

    def begin(self, limit: Limit = unlimited) -> Stop:
        """A new run of this page: whatever it was running before is ended."""
        self.stop()
        self.cancel, self.over = Stop(limit), threading.Event()
        return self.cancel

    def current(self, cancel: threading.Event) -> bool:
        """Whether the run that ``cancel`` ends is the one this page wants to see, stopped or not."""
        return cancel is self.cancel

    def turn_away(self) -> None:
        """End the run that is going on: the page is about to show something else, which its last frames must not follow."""
        running = self.stop()
        self.cancel = None
        if running:
            self.over.wait(PATIENCE)

    def stop(self) -> bool:
        """End the run that is going on. False when there was none."""
        running = self.cancel is not None and not self.cancel.is_set()
        if self.cancel is not None:
            self.cancel.set()
        return running


class PageSessions:
    """The pages that have run something, by their session's name, which only the server and that page know."""

    def __init__(self, most: int = MOST_PAGES, each: int = MOST_EACH) -> None:
        self.most = most
        self.each = each
        self._open: OrderedDict[str, PageSession] = OrderedDict()
        self._lock = threading.Lock()

    def enter(self, session: str | None, address: str = "") -> PageSession:
        """The session of a page that is about to run something, begun now if it is new.

        Only idle pages make room for it, those of the same address first. Raises BadInput without a session, and a
        SpecvizError where nothing is idle.
        """
        if not session:
            raise BadInput("This page has no session; reload it.")
        with self._lock:
            if session not in self._open:
                self._make_room(address)
                self._open[session] = PageSession(address)
            self._open.move_to_end(session)
            return self._open[session]

    def _make_room(self, address: str) -> None:
        same_address = [name for name, page in self._open.items() if page.address == address]
        if len(same_address) >= self.each:
            self._forget_one_of(same_address)
        elif len(self._open) >= self.most:
            self._forget_one_of(list(self._open))

    def _forget_one_of(self, names: list[str]) -> None:
        idle = next((name for name in names if not self._open[name].running), None)
        if idle is None:
            raise SpecvizError(
                f"{len(names)} runs from your address wait or go on already, the most there may be. Try again when one of them "
                "is over; recorded runs play without waiting."
            )
        del self._open[idle]

    def find(self, session: str | None) -> PageSession | None:
        """The session of a page that has run something; None for any other."""
        with self._lock:
            return self._open.get(session or "")

    def leave(self, session: str | None) -> None:
        """The page was closed: end its run and forget it."""
        with self._lock:
            page = self._open.pop(session or "", None)
        if page is not None:
            page.stop()

    def __len__(self) -> int:
        return len(self._open)
