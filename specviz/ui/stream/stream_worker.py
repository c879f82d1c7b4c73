"""Bridge from the engine's thread to the page: a bounded queue of lines that come out in batches a browser can follow.

The place of a stopped run is released without its thread, which may be blocked.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from specviz.engine.stop import NOTHING_RUN, Interrupted, stop_reason, stoppable
from specviz.errors import SpecvizError

BATCH_SECONDS = 0.08
"""Least seconds between two updates of the screen: twelve a second look like motion, more only cost."""

TELL_SECONDS = 0.4
"""The same while only loading messages come: a number that counts up is read no faster."""

LOOK_SECONDS = 1.0
"""Seconds between two checks whether a silent run is still wanted."""

BOUND = 2048
"""Lines that may wait for the screen. An engine that is further ahead than this waits for the screen."""

GLANCE_SECONDS = 0.2
"""Seconds between two checks whether a run was stopped or its time is up."""

GRACE_SECONDS = 4.0
"""Seconds that a stopped run keeps its place: a step takes less, except with the largest models."""

STOPPING = "Stopping"


@dataclass
class Batch:
    """Events since the last batch. ``status`` is the latest loading message with the share done, None if unknown;
    ``failure`` comes last, if at all.

    ``ended``: an end line is among ``lines``. ``abandoned``: the run was stopped and its thread sends no more.
    """

    lines: list[str] = field(default_factory=list)
    ended: bool = False
    status: tuple[str, float | None] | None = None
    failure: str = ""
    abandoned: bool = False


class StreamSink:
    """The engine's end, called from its thread."""

    def __init__(self, cancel: threading.Event, bound: int) -> None:
        self.cancel = cancel
        self.gone = threading.Event()
        self.abandoned = threading.Event()
        self.items: queue.Queue[Callable[[Batch], None] | None] = queue.Queue(bound)

    def line(self, text: str, *, ended: bool = False) -> None:
        """Send a line of the trace; ``ended`` marks the end line."""

        def hand_over(batch: Batch) -> None:
            batch.lines.append(text)
            batch.ended = batch.ended or ended

        self.put(hand_over)

    def status(self, message: str, share: float | None = None) -> None:
        """Report loading progress. Raises Interrupted once the run is stopped, which ends a long download too."""
        if self.cancel.is_set():
            raise Interrupted
        self.put(lambda batch: setattr(batch, "status", (message, share)))

    def failure(self, message: str) -> None:
        """Report why no more lines come."""
        self.put(lambda batch: setattr(batch, "failure", message))

    def put(self, item: Callable[[Batch], None] | None) -> None:
        """Put an item in the queue, waiting for room as long as a page reads."""
        while not self.gone.is_set():
            try:
                return self.items.put(item, timeout=0.2)
            except queue.Full:
                continue


def pump(
    work: Callable[[StreamSink], None],
    cancel: threading.Event,
    done: Callable[[], None] = lambda: None,
    *,
    is_wanted: Callable[[], bool] = lambda: True,
    every: float = BATCH_SECONDS,
    bound: int = BOUND,
) -> Generator[Batch, None, None]:
    """Run ``work`` in its own thread and yield its items in batches, at most one every ``every`` seconds.

    ``done`` is called when the work is over for any reason, or ``GRACE_SECONDS`` after ``cancel`` was set; it may be called
    twice. In that thread ``heed`` checks ``cancel``. Closing this generator sets ``cancel`` and returns at once. The same
    happens once ``is_wanted`` is False; it is checked between two batches and every ``LOOK_SECONDS`` while none comes.
    """
    outlet, ended = StreamSink(cancel, bound), threading.Event()
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_work, work, outlet, done, ended), daemon=True, name="specviz-engine").start()
    threading.Thread(target=_watch, args=(outlet, done, ended), daemon=True, name="specviz-watch").start()
    last, over = -every, False
    try:
        while not over and is_wanted():
            batch, over = _collect(outlet.items, last, every, is_wanted)
            last = time.monotonic()
            if batch != Batch():  # the engine's thread may end long after its last line
                yield batch
    finally:
        outlet.gone.set()
        cancel.set()


def _watch(outlet: StreamSink, done: Callable[[], None], ended: threading.Event) -> None:
    """Report a stop at once, and release the run's place if its thread does not end soon after."""
    while not outlet.cancel.is_set():
        if ended.wait(GLANCE_SECONDS):
            return
    outlet.put(lambda batch: setattr(batch, "status", (STOPPING, None)))
    if not ended.wait(GRACE_SECONDS):
        outlet.abandoned.set()
        outlet.put(lambda batch: setattr(batch, "abandoned", True))
        outlet.put(None)
        done()


def _work(work: Callable[[StreamSink], None], outlet: StreamSink, done: Callable[[], None], ended: threading.Event) -> None:
    try:
        with stoppable(outlet.cancel):
            work(outlet)
    except Interrupted:
        outlet.failure(stop_reason(outlet.cancel) or NOTHING_RUN)
    except SpecvizError as error:
        outlet.failure(str(error))
    except Exception as fault:
        # The visitor sees that the fault is ours, the log holds the fault itself.
        logging.getLogger(__name__).exception("a run failed")
        outlet.failure(f"The run stopped because of a fault in specviz: {type(fault).__name__}. What it wrote is kept.")
    finally:
        try:
            done()
        finally:
            ended.set()
            outlet.put(None)


def _collect(
    items: queue.Queue[Callable[[Batch], None] | None], last: float, every: float, is_wanted: Callable[[], bool]
) -> tuple[Batch, bool]:
    """Wait for the next item; return it with all that arrive within ``every`` seconds of the ``last`` batch, and whether
    no more follow."""
    batch, item = Batch(), None
    while True:
        try:
            item = items.get(timeout=LOOK_SECONDS)
            break
        except queue.Empty:
            if not is_wanted():
                return batch, True
    while item is not None:
        item(batch)
        until = last + (every if batch.lines else max(every, TELL_SECONDS))
        try:
            item = items.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return batch, False
    return batch, True
