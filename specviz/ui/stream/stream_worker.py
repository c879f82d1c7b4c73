"""Bridge from the engine's thread to the page: changes since the page's last update, at a pace that it can follow.

A stopped run's place in the queue is soon released even if its thread is blocked.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

from specviz.engine.stop import NOTHING_RUN, Interrupted, Stop, stop_reason, stoppable
from specviz.errors import SpecvizError
from specviz.trace.schema import Trace
from specviz.viewer.component import control

TELL_SECONDS = 0.4
"""Minimum seconds between two loading messages: nobody reads a progress counter faster than that."""

LOOK_SECONDS = 0.5
"""Seconds between two checks whether a run without news is still wanted."""

GLANCE_SECONDS = 0.2
"""Seconds between two checks whether a run was stopped or its time is up."""

GRACE_SECONDS = 4.0
"""Seconds that a stopped run keeps its place: a step takes less, except with the largest models."""

STOPPING = "Stopping"


@dataclass(frozen=True)
class Frame:
    """State of a run, without its lines. ``cancel`` stops this run.

    ``message`` and ``fraction`` describe the progress before the first step. ``begun``: the store has lines of the run under
    ``key``, which stay on the stage even after a ``failure``, the reason why the run broke off or never began. ``trace`` is set
    with the first lines and with every end line. ``timing``: this run is over, and its autoregressive run is being timed.
    """

    cancel: Stop
    key: str
    message: str = ""
    fraction: float | None = None
    begun: bool = False
    failure: str = ""
    timing: bool = False
    trace: Trace | None = None

    @property
    def feed(self) -> str:
        """The stage's text: the control line of this state."""
        states: dict[str, object] = {"baseline": "being timed now, on the same prompt" if self.timing else ""}
        if self.begun:
            states["follow"] = True
        elif self.message:
            states["message"] = self.message
            if self.fraction is not None:
                states["fraction"] = round(self.fraction, 3)
        if self.failure:
            states["error"] = self.failure
        return control("live", self.key, **states)


class StreamSink:
    """The producer side, called from the engine's thread: the run's frame, replaced at each change.

    ``urgent``: the run's first lines or an end line were written, it failed, or was abandoned since the last update.
    ``abandoned``: it was stopped, and its thread may write no more.
    """

    def __init__(self, frame: Frame, nothing: str = NOTHING_RUN) -> None:
        self.frame, self.cancel, self.nothing = frame, frame.cancel, nothing
        self.abandoned = self.over = self.ended_by_stop = self.fresh = self.urgent = False
        self.changed = threading.Condition()

    def lines(self, *, ended: bool = False) -> None:
        """Report that the run has its first lines or, with ``ended``, an end line."""
        with self.changed:
            self.ended_by_stop |= ended and self.cancel.is_set()
            self.put(urgent=True, begun=True)

    def status(self, message: str, share: float | None = None) -> None:
        """Report loading progress and the fraction done. Raises Interrupted once the run is stopped, which ends a long download
        too."""
        if self.cancel.is_set():
            raise Interrupted
        self.put(message=message, fraction=share)

    def stopped(self) -> str:
        """Return the reason for a stop that leaves nothing to show."""
        return stop_reason(self.cancel) or self.nothing

    def put(self, *, over: bool = False, urgent: bool = False, **news: Any) -> None:
        """Replace these fields of the frame; ``over`` marks the last change."""
        with self.changed:
            if not self.over:
                self.frame = replace(self.frame, **news)
                self.fresh, self.urgent, self.over = self.fresh or bool(news), self.urgent or urgent, over
                self.changed.notify()

    def take(self, until: float) -> tuple[Frame, bool] | None:
        """Wait for a change and, unless it is urgent, until the time ``until``. Returns the frame and whether it is urgent; None
        if nothing changes for a while."""
        with self.changed:
            self.changed.wait_for(lambda: self.over or self.fresh, LOOK_SECONDS)
            if not self.fresh:
                return None
            self.changed.wait_for(lambda: self.over or self.urgent, max(0.0, until - time.monotonic()))
            news = self.frame, self.urgent
            self.fresh = self.urgent = False
            return news


def pump(
    work: Callable[[], None],
    sink: StreamSink,
    done: Callable[[], None] = lambda: None,
    *,
    is_wanted: Callable[[], bool] = lambda: True,
    every: float = TELL_SECONDS,
) -> Generator[tuple[Frame, bool], None, None]:
    """Run ``work`` in its own thread and yield the frame of its ``sink`` and whether it is urgent; loading messages come at most
    once every ``every`` seconds.

    ``done`` is called when the work is over for any reason, or ``GRACE_SECONDS`` after the run was stopped; it may be called
    twice. Inside ``work``'s thread, ``heed`` checks for a stop. Closing this generator stops the run and returns at once. The
    same happens once ``is_wanted`` is False; it is checked between two frames and every ``LOOK_SECONDS`` while none comes.
    """
    ended, context = threading.Event(), contextvars.copy_context()
    threading.Thread(target=context.run, args=(_work, work, sink, done, ended), daemon=True, name="specviz-engine").start()
    threading.Thread(target=_watch, args=(sink, done, ended), daemon=True, name="specviz-watch").start()
    until = 0.0
    try:
        while is_wanted():
            over = sink.over  # read before the news, so that no last one is missed
            if news := sink.take(until):
                yield news
                until = time.monotonic() + every
            elif over:
                break
    finally:
        sink.cancel.set()


def _watch(sink: StreamSink, done: Callable[[], None], ended: threading.Event) -> None:
    """Report a stop at once, unless the run's end line came first; release its place if its thread does not end soon after."""
    while not sink.cancel.is_set():
        if ended.wait(GLANCE_SECONDS):
            return
    with sink.changed:
        if not sink.ended_by_stop:
            sink.put(message=STOPPING, fraction=None)
    if not ended.wait(GRACE_SECONDS):
        sink.abandoned = True
        sink.put(urgent=True, over=True, failure="" if sink.frame.begun else sink.stopped())
        done()


def _work(work: Callable[[], None], sink: StreamSink, done: Callable[[], None], ended: threading.Event) -> None:
    failure = ""
    try:
        with stoppable(sink.cancel):
            work()
    except Interrupted:
        failure = sink.stopped()
    except SpecvizError as error:
        failure = str(error)
    except Exception as fault:
        # The visitor learns that the fault is ours; the log holds the details.
        logging.getLogger(__name__).exception("a run failed")
        failure = f"The run stopped because of a fault in specviz: {type(fault).__name__}. The output so far is kept."
    try:
        if failure:
            sink.put(urgent=True, failure=failure)
        done()
    finally:
        ended.set()
        sink.put(over=True)
