"""State of one page's session: its current run and the memory of earlier ones. Dropped when the page closes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from specviz.engine.stop import Limit, Stop, unlimited
from specviz.errors import BadInput, SpecvizError
from specviz.pipeline.request import Memory

MOST_PAGES = 256
"""Maximum number of pages whose memory of earlier runs the server keeps; beyond it, the page idle longest is dropped."""

MOST_EACH = 40
"""Maximum number of these pages per address; the app sets it to two thirds of its queue, enough for a class behind one router."""

PATIENCE = 3.0
"""Seconds that a page waits for a run that it stops; a run that is loading its model may take longer to end."""


@dataclass
class PageSession:
    """State of one open page. ``cancel`` stops its current run; ``over`` is set once that run's frames have ended."""

    address: str = ""
    memory: Memory = field(default_factory=Memory)
    cancel: Stop | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def running(self) -> bool:
        """Whether a run of this page is waiting or running."""
        return self.cancel is not None and not self.over.is_set()

    def begin(self, limit: Limit = unlimited) -> Stop:
        """Stop the page's previous run and return the ``Stop`` of a new one."""
        self.stop()
        self.cancel, self.over = Stop(limit), threading.Event()
        return self.cancel

    def current(self, cancel: threading.Event) -> bool:
        """Whether ``cancel`` belongs to the run that this page shows, stopped or not."""
        return cancel is self.cancel

    def turn_away(self) -> None:
        """Stop the current run and wait for it, so that its last frames do not follow what the page shows next."""
        running = self.stop()
        self.cancel = None
        if running:
            self.over.wait(PATIENCE)

    def stop(self) -> bool:
        """Stop the current run. Returns False without one."""
        running = self.cancel is not None and not self.cancel.is_set()
        if self.cancel is not None:
            self.cancel.set()
        return running


@dataclass(eq=False)
class PageSessions:
    """Pages that have run something, by session name, which is known only to the server and that page."""

    most: int = MOST_PAGES
    each: int = MOST_EACH
    _open: OrderedDict[str, PageSession] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, session: str | None, address: str = "") -> PageSession:
        """Return the session of a page that is about to run something, created if it is new.

        Only an idle page makes room for it, one of the same address if that address has its maximum. Raises BadInput without a
        session name, and SpecvizError when no page is idle.
        """
        if not session:
            raise BadInput("This page has no session; reload it.")
        with self._lock:
            if session not in self._open:
                same_address = [name for name, page in self._open.items() if page.address == address]
                if len(same_address) >= self.each:
                    self._forget_one_of(same_address)
                elif len(self._open) >= self.most:
                    self._forget_one_of(list(self._open))
                self._open[session] = PageSession(address)
            self._open.move_to_end(session)
            return self._open[session]

    def _forget_one_of(self, names: list[str]) -> None:
        idle = next((name for name in names if not self._open[name].running), None)
        if idle is None:
            raise SpecvizError(
                f"{len(names)} runs are already waiting or running, the maximum. Try again when one of them is over; "
                "recorded runs play without waiting."
            )
        del self._open[idle]

    def find(self, session: str | None) -> PageSession | None:
        """Return the session of a page that has run something; None for any other."""
        with self._lock:
            return self._open.get(session or "")

    def leave(self, session: str | None) -> None:
        """Stop the run of a closed page and drop its session."""
        with self._lock:
            page = self._open.pop(session or "", None)
        if page is not None:
            page.stop()

    def __len__(self) -> int:
        return len(self._open)
