"""Ctrl-C handling: the first one stops the engine after the current step, so that the trace stays whole."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Stopping:
    """Context in which an interrupt sets ``event`` once the run has ``started``.

    An earlier or second interrupt raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.started = False
        self._before: object = None
        self._in_main_thread = threading.current_thread() is threading.main_thread()

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self.event.is_set()

    def __enter__(self) -> Stopping:
        if self._in_main_thread:
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, at: TracebackType | None) -> None:
        if self._in_main_thread:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if not self.started or self.requested:
            raise KeyboardInterrupt
        self.event.set()
