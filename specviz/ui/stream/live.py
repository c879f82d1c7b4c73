"""Life of a live run: wait in the queue, start the engine, store its lines for the page's event stream, report its state."""

from __future__ import annotations

import contextvars
import logging
import math
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from specviz.engine.stop import NOTHING_RUN, Interrupted, Limit, Stop, stoppable
from specviz.errors import BadTrace, SpecvizError
from specviz.pipeline.request import Memory, Request
from specviz.trace import store as traces
from specviz.trace.schema import End, Run, Trace
from specviz.trace.wire import TraceWriter
from specviz.ui.access import Caller, PageSession
from specviz.ui.stream.engine import Progress, Stream, stopped
from specviz.ui.stream.sse import EventStreams
from specviz.viewer.component import control

MESSAGE_SECONDS = 0.4
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
        return self.cancel.why or self.nothing

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
    every: float = MESSAGE_SECONDS,
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


CONNECT_SECONDS = 0.05
"""Seconds between two checks whether the reader of the run whose turn it is has connected."""

WAIT_SECONDS = 0.5
"""Seconds between two checks whether a waiting run is still wanted."""

TELL_SECONDS = 3.0
"""Minimum seconds between two updates of a waiting page: an answer through Gradio's queue costs as much as decoding a token."""

CROWD = 4
"""Number of waiting runs at which every run is shortened, so that each of thirty visitors sees one within three minutes."""

CROWD_TOKENS = 32
CROWD_SECONDS = 5.0

ASIDE = (300.0, "An inspection may take 300 s here.")
"""Time limit in seconds for work other than runs, and its message."""

RECENT = 9
"""Number of latest runs whose durations predict those of the next ones."""

UNFINISHED = "Stopped before it finished; there is nothing to show."

UNREAD = "Nobody was reading this run any more, so the next one took its place."


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
        """Estimated seconds left: to the median of recent runs of this kind or, past that, of those that took longer than this
        one has so far. NaN without such runs."""
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
        """Release the place in the queue."""
        with self.queue.changed:
            if self in self.queue.tickets:
                self.queue.tickets.remove(self)
                if self.started is not None:
                    self.queue.recent[self.kind].append(self.queue.clock() - self.started)
                self.queue.changed.notify_all()


@dataclass(eq=False)
class RunQueue:
    """Queue of runs: first come, first served."""

    waiting: int
    clock: Callable[[], float] = time.monotonic
    tickets: list[Ticket] = field(default_factory=list)
    recent: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=RECENT)))
    """Durations of the latest runs of each kind."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def join(self, kind: str = "run") -> Ticket:
        """Join the queue; work of one ``kind`` takes similarly long. Raises SpecvizError, with a remedy, if it is full."""
        with self.changed:
            if len(self.tickets) > self.waiting:
                raise SpecvizError(
                    f"The engine is busy, and its queue is full: {self.waiting} {'run is' if self.waiting == 1 else 'runs are'} "
                    "waiting. Try again in a minute; recorded runs play without waiting."
                )
            ticket = Ticket(self, kind)
            self.tickets.append(ticket)
            return ticket

    @property
    def behind(self) -> int:
        """Number of runs that wait after the one whose turn it is."""
        return max(0, len(self.tickets) - 1)


@dataclass(eq=False)
class Live:
    """The engine shared by all visitors: one run at a time."""

    stream: Stream
    queue: RunQueue
    streams: EventStreams
    seconds: int | None = None
    preparing: float = math.inf

    def __post_init__(self) -> None:
        self.store = self.streams.store

    def run(
        self, page: PageSession, request: Request, caller: Caller | None = None, memory: Memory | None = None
    ) -> Generator[Frame, None, None]:
        """Yield the frames of one run. Raises SpecvizError only before the page changes.

        A run starts once its ``caller`` is connected, and ends once the caller has left. ``memory`` replaces the page's own.
        """

        def work(outlet: StreamSink) -> None:
            outlet.cancel.prepare(self.preparing_limit)
            self._write(request, memory or page.memory, outlet)

        return self._in_turn("run", page, caller, self.limit, work, baseline=request.baseline)

    def aside(self, page: PageSession, work: Callable[[Progress], None], caller: Caller) -> Generator[Frame, None, None]:
        """Yield the frames of other work, which waits its turn among the runs and ends as they do.

        ``work`` receives a progress function, which raises Interrupted once the work must end.
        """

        def watched(outlet: StreamSink) -> None:
            outlet.cancel.begin()
            work(outlet.status)

        return self._in_turn("aside", page, caller, lambda: min(self.limit(), ASIDE), watched, UNFINISHED)

    def _in_turn(
        self,
        kind: str,
        page: PageSession,
        caller: Caller | None,
        limit: Limit,
        work: Callable[[StreamSink], None],
        nothing: str = NOTHING_RUN,
        baseline: bool = False,
    ) -> Generator[Frame, None, None]:
        """Yield the frames of ``work`` in its turn. The place in the queue is released when the engine's thread ends,
        or soon after the work was stopped."""
        ticket, caller = self.queue.join(kind), caller or Caller()
        frame = Frame(page.begin(limit), self.streams.begin())
        over, has_turn = page.over, False
        try:
            refusal = yield from self._turn(ticket, frame, caller)
            if refusal:
                yield replace(frame, failure=refusal)
                return
            has_turn = True
            ticket.start()
            outlet = StreamSink(frame, nothing)
            with closing(pump(lambda: work(outlet), outlet, ticket.leave, is_wanted=lambda: not caller.gone)) as states:
                for state, urgent in states:
                    frame = replace(state, timing=frame.timing, failure=state.failure or frame.failure)
                    if state.begun and urgent:
                        frame = self._explained(frame, baseline, outlet.abandoned)
                    yield frame
            if frame.timing:  # stopped before the autoregressive run was over
                yield replace(frame, timing=False, trace=None)
        finally:
            self.streams.end(frame.key)
            over.set()
            if not has_turn:
                ticket.leave()
            if not frame.begun:
                self.store.drop(frame.key)

    def limit(self) -> tuple[float, str]:
        """Return the maximum seconds that the current run may compute, and the reason."""
        limits = [(math.inf, "")]
        if self.seconds:
            limits.append((float(self.seconds), f"A run may take {self.seconds} s here."))
        if self.crowded:
            limits.append((CROWD_SECONDS, f"While {self.queue.behind} more runs waited, its limit was {CROWD_SECONDS:g} s."))
        return min(limits)

    def preparing_limit(self) -> tuple[float, str]:
        """Return the maximum seconds for fetching and loading, and the reason: limited only while other runs wait."""
        if not self.queue.behind:
            return math.inf, ""
        return self.preparing, (
            f"Fetching and loading the model took more than the {self.preparing:g} s allowed while others wait. Try again later: "
            "what was fetched is kept."
        )

    @property
    def crowded(self) -> bool:
        """Whether so many runs wait that every run is shortened."""
        return self.queue.behind >= CROWD

    def _turn(self, ticket: Ticket, frame: Frame, caller: Caller) -> Generator[Frame, None, str]:
        """Yield frames until this run's turn. Returns an empty text, or the reason why its turn never comes."""
        last_message, last_time = "", 0.0
        while True:
            turn = ticket.wait(WAIT_SECONDS)
            if frame.cancel.is_set():
                return "Stopped while waiting in line; nothing was run."
            if turn and caller.connected:
                return ""
            if caller.gone:
                return UNREAD
            if turn:  # the page is about to connect; the queue stands still
                frame.cancel.wait(CONNECT_SECONDS)
                continue
            if (message := self._ahead(ticket)) != last_message and time.monotonic() - last_time >= TELL_SECONDS:
                yield replace(frame, message=message)
                last_message, last_time = message, time.monotonic()

    def _ahead(self, ticket: Ticket) -> str:
        count, seconds = len(ticket.ahead), ticket.seconds
        word = f"Waiting for the engine: {count} {'run is' if count == 1 else 'runs are'} ahead of yours"
        if seconds is not None:  # rounded, as it is only an estimate
            word += f", about {max(5, 5 * round(seconds / 5))} s" if seconds < 60 else f", about {round(seconds / 60)} min"
        word += "."
        if self.crowded:
            word += f" While so many wait, a run writes at most {CROWD_TOKENS} tokens in at most {CROWD_SECONDS:g} s."
        return word

    def _write(self, request: Request, memory: Memory, outlet: StreamSink) -> None:
        """Run the request and write its lines into the store, the first one together with the second."""
        requested_tokens = request.max_new_tokens
        if self.crowded:
            request = replace(request, max_new_tokens=min(requested_tokens, CROWD_TOKENS))
        writer, opening, key = TraceWriter(), list[str](), outlet.frame.key
        with closing(self.stream(request, memory, outlet.cancel, outlet.status)) as events:
            for event in events:
                if outlet.abandoned:  # the run already has an end, after which no line may come
                    raise Interrupted
                if isinstance(event, Run):  # the stage keeps the earlier run until this one has something to show
                    if event.max_new_tokens == request.max_new_tokens < requested_tokens:
                        warning = (
                            f"So many runs are waiting that this one writes at most {request.max_new_tokens} tokens "
                            f"instead of {requested_tokens}. Run it again later."
                        )
                        event = event.replace(warnings=(*event.warnings, warning))
                    opening.append(writer.add(event))
                    continue
                is_end, begins = isinstance(event, End), bool(opening)
                if begins and isinstance(event, End) and event.reason == "cancelled":
                    raise Interrupted
                for line in (*opening, writer.add(event)):
                    self.store.append(key, line)
                opening.clear()
                if begins or is_end:
                    outlet.lines(ended=is_end)

    def _explained(self, frame: Frame, baseline: bool, abandoned: bool) -> Frame:
        """Return the frame with its trace. An abandoned run gets its end record here, as its thread writes none."""
        text, trace, failure = self.store.text(frame.key), None, frame.failure
        try:
            trace = traces.read(text.encode()) if text else None
        except BadTrace as error:
            broken = f"This run's own file breaks the trace format, so it cannot be explained or saved: {error}"
            failure = failure or broken
        if abandoned and trace is not None and trace.end is None:
            ended = trace.replace(end=stopped(trace, frame.cancel.why))
            self.store.append(frame.key, traces.lines(ended)[-1])
            return self._explained(frame, baseline, abandoned=False)
        # The engine goes on with the autoregressive run after a run that ended by itself.
        end = trace and trace.end
        timing = bool(baseline and end and end.baseline is None and end.reason in ("eos", "budget", "context"))
        return replace(frame, failure=failure, timing=timing, trace=trace)
