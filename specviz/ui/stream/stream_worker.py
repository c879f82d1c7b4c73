"""Bridge from the engine's thread to the page: news since the page's last update, at a pace that it can follow.

A stopped run's place in the queue is released without waiting for its thread, which may be blocked.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from specviz.engine.stop import NOTHING_RUN, Interrupted, stop_reason, stoppable
from specviz.errors import SpecvizError

TELL_SECONDS = 0.4
"""Minimum seconds between two loading messages: nobody reads a progress counter faster than that."""

LOOK_SECONDS = 0.5
"""Seconds between two checks whether a run without news is still wanted."""

GLANCE_SECONDS = 0.2
"""Seconds between two checks whether a run was stopped or its time is up."""

GRACE_SECONDS = 4.0
"""Seconds that a stopped run keeps its place: a step takes less, except with the largest models."""

STOPPING = "Stopping"


@dataclass
class Batch:
    """News since the last batch. ``status`` is the latest loading message and the fraction done (None if unknown), or None
    without a message; ``failure`` comes last, if at all.

    ``lines``: the run's first lines or an end line were written, with ``ended`` an end line. ``abandoned``: the run was stopped
    and its thread writes no more.
    """

    lines: bool = False
    ended: bool = False
    status: tuple[str, float | None] | None = None
    failure: str = ""
    abandoned: bool = False

    @property
    def urgent(self) -> bool:
        """Whether the page is updated at once."""
        return self.lines or bool(self.failure) or self.abandoned


class StreamSink:
    """The producer side of the queue, called from the engine's thread."""

    def __init__(self, cancel: threading.Event, nothing: str = NOTHING_RUN) -> None:
        self.cancel = cancel
        self.nothing = nothing
        self.begun = self.abandoned = self.over = self.ended_by_stop = False
        self.batch = Batch()
        self.changed = threading.Condition()

    def lines(self, *, ended: bool = False) -> None:
        """Report that the run has its first lines or, with ``ended``, an end line."""
        with self.changed:
            self.begun = True
            self.ended_by_stop |= ended and self.cancel.is_set()
            self.put(lines=True, **({"ended": True} if ended else {}))

    def status(self, message: str, share: float | None = None) -> None:
        """Report loading progress. Raises Interrupted once the run is stopped, which ends a long download too."""
        if self.cancel.is_set():
            raise Interrupted
        self.put(status=(message, share))

    def stopped(self) -> str:
        """Return the reason of a stop that leaves nothing to show."""
        return stop_reason(self.cancel) or self.nothing

    def put(self, *, over: bool = False, **news: object) -> None:
        """Add news to the next batch; with ``over`` it is the last."""
        with self.changed:
            if not self.over:
                vars(self.batch).update(news)
                self.over = over
                self.changed.notify()

    def take(self, until: float) -> Batch:
        """Wait for news, not before ``until`` unless it is urgent, and return it; an empty batch if none comes for a while."""
        with self.changed:
            self.changed.wait_for(lambda: self.over or self.batch != Batch(), LOOK_SECONDS)
            if self.batch != Batch():
                self.changed.wait_for(lambda: self.over or self.batch.urgent, max(0.0, until - time.monotonic()))
            batch, self.batch = self.batch, Batch()
            return batch


def pump(
    work: Callable[[StreamSink], None],
    cancel: threading.Event,
    done: Callable[[], None] = lambda: None,
    *,
    is_wanted: Callable[[], bool] = lambda: True,
    every: float = TELL_SECONDS,
    nothing: str = NOTHING_RUN,
) -> Generator[Batch, None, None]:
    """Run ``work`` in its own thread and yield its news in batches; loading messages come at most one every ``every`` seconds.

    ``done`` is called when the work is over for any reason, or ``GRACE_SECONDS`` after ``cancel`` was set; it may be called
    twice. Inside ``work``'s thread, ``heed`` checks ``cancel``. Closing this generator sets ``cancel`` and returns at once. The
    same happens once ``is_wanted`` is False; it is checked between two batches and every ``LOOK_SECONDS`` while none comes.
    ``nothing`` is the failure of work that was stopped before it had a line.
    """
    outlet, ended = StreamSink(cancel, nothing), threading.Event()
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_work, work, outlet, done, ended), daemon=True, name="specviz-engine").start()
    threading.Thread(target=_watch, args=(outlet, done, ended), daemon=True, name="specviz-watch").start()
    until = 0.0
    try:
        while is_wanted():
            over = outlet.over  # read before the batch, so that no last news is missed
            batch = outlet.take(until)
            if batch != Batch():
                yield batch
                until = time.monotonic() + every
            elif over:
                break
    finally:
        cancel.set()


def _watch(outlet: StreamSink, done: Callable[[], None], ended: threading.Event) -> None:
    """Report a stop at once, unless the run's end line came first; release its place if its thread does not end soon after."""
    while not outlet.cancel.is_set():
        if ended.wait(GLANCE_SECONDS):
            return
    with outlet.changed:
        if not outlet.ended_by_stop:
            outlet.put(status=(STOPPING, None))
    if not ended.wait(GRACE_SECONDS):
        outlet.abandoned = True
        outlet.put(abandoned=True, over=True, **({} if outlet.begun else {"failure": outlet.stopped()}))
        done()


def _work(work: Callable[[StreamSink], None], outlet: StreamSink, done: Callable[[], None], ended: threading.Event) -> None:
    try:
        with stoppable(outlet.cancel):
            work(outlet)
    except Interrupted:
        outlet.put(failure=outlet.stopped())
    except SpecvizError as error:
        outlet.put(failure=str(error))
    except Exception as fault:
        # The visitor sees that the fault is ours, the log holds the fault itself.
        logging.getLogger(__name__).exception("a run failed")
        outlet.put(failure=f"The run stopped because of a fault in specviz: {type(fault).__name__}. The output so far is kept.")
    finally:
        try:
            done()
        finally:
            ended.set()
            outlet.put(over=True)
