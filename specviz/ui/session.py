"""One visitor's hold on the server: what may be stopped and what earlier runs left. Forgotten on leaving."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from specviz.errors import BadInput
from specviz.request import Memory

MOST_VISITS = 256
"""Pages open at once that the server remembers; beyond it the one idle for longest is forgotten."""

PATIENCE = 3.0
"""Seconds that a page waits for a run it leaves; a run still loading its model may take longer to notice."""


@dataclass
class Visit:
    """What belongs to one open page. ``cancel`` ends the run that is going on, ``over`` is set when it has been shown."""

    memory: Memory = field(default_factory=Memory)
    cancel: threading.Event | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> threading.Event:
        """A new run of this page: whatever it was running before is ended."""
        self.stop()
        self.cancel, self.over = threading.Event(), threading.Event()
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


class Visits:
    """Every open page by its session's name, which only the server and that page know."""

    def __init__(self, most: int = MOST_VISITS) -> None:
        self.most = most
        self._open: OrderedDict[str, Visit] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, session: str | None) -> Visit:
        """The visit of a page, begun now if it is new. Raises BadInput without a session."""
        if not session:
            raise BadInput("This page has no session; reload it.")
        with self._lock:
            visit = self._open.setdefault(session, Visit())
            self._open.move_to_end(session)
            while len(self._open) > self.most:
                self._open.popitem(last=False)[1].stop()
            return visit

    def leave(self, session: str | None) -> None:
        """The page was closed: end its run and forget it."""
        with self._lock:
            visit = self._open.pop(session or "", None)
        if visit is not None:
            visit.stop()

    def __len__(self) -> int:
        return len(self._open)
