"""Bridge from the engine's thread to the page: a bounded queue of lines that come out in batches a browser can follow.

The place of a run that was stopped goes on without its thread, whatever that waits for.
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
"""Least time between two updates of the screen: twelve a second read as motion, more only costs."""

TELL_SECONDS = 0.4
"""The same while nothing but words on loading comes: a number that counts up is read no faster."""

LOOK_SECONDS = 1.0
"""Between two looks at whether a silent run is still wanted."""

BOUND = 2048
"""Lines that may wait for the screen. An engine that is further ahead than this waits for the screen."""

GLANCE_SECONDS = 0.2
"""Between two looks at whether a run was stopped or its time is up."""

GRACE_SECONDS = 4.0
"""How long a run that was stopped keeps its place: a step takes less, but for the largest models."""

STOPPING = "Stopping"


@dataclass
class Batch:
    """What happened since the last one. ``status`` is the newest word on loading with the share that is done, None where nobody
    can know; ``failure`` comes last, if at all.

    ``ended`` says that an end line is among ``lines``, ``abandoned`` that the run was stopped and its thread says no more.
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
        """A line of the trace, the end line marked."""

        def hand_over(batch: Batch) -> None:
            batch.lines.append(text)
            batch.ended = batch.ended or ended

        self.put(hand_over)

    def status(self, message: str, share: float | None = None) -> None:
        """How loading goes. Raises Interrupted when nobody wants the run any more, which ends a long download too."""
        if self.cancel.is_set():
            raise Interrupted
        self.put(lambda batch: setattr(batch, "status", (message, share)))

    def failure(self, message: str) -> None:
        """Why there is no more to come."""
        self.put(lambda batch: setattr(batch, "failure", message))

    def put(self, item: Callable[[Batch], None] | None) -> None:
        """Hand over, waiting for room as long as a page is listening."""
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
    """Run ``work`` in a thread of its own and yield what it hands over, at most once every ``every`` seconds.

    ``done`` is called when the work is over, whatever happened, or ``GRACE_SECONDS`` after ``cancel`` was set; it may be called
    twice. In that thread ``heed`` sees ``cancel``. Closing this generator sets it and returns at once. The same happens once
    ``is_wanted`` says no, which is asked between two batches and every ``LOOK_SECONDS`` while none comes.
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
            if batch != Batch():  # the engine's thread may say that it is over long after its last line
                yield batch
    finally:
        outlet.gone.set()
        cancel.set()


def _watch(outlet: StreamSink, done: Callable[[], None], ended: threading.Event) -> None:
    """Say at once that a run was stopped, and give its place to the next one when its thread has not ended soon after."""
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
        # The visitor learns that it was our fault, the log learns what it was.
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
    """The next item, whenever it comes, and all that arrive with it or within ``every`` seconds of the ``last`` batch. True with
    the last one of all."""
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
