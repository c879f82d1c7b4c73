"""Live runs: waiting in the queue, decoding, storing trace lines for the event stream, and reporting the state to the page."""

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
"""Minimum interval of loading messages in seconds."""

LOOK_SECONDS = 0.5
"""Interval in seconds at which a run without progress checks whether its client is still connected."""

GLANCE_SECONDS = 0.2
"""Interval in seconds of the checks for a stop or the time limit."""

GRACE_SECONDS = 4.0
"""Time in seconds after which a stopped run loses its place in the queue. A step takes less, except with the largest models."""

STOPPING = "Stopping"


@dataclass(frozen=True)
class Frame:
    """State of a run.

    ``cancel``: stops the run; ``key``: key of the run in the store; ``message``, ``fraction``: progress before the first step;
    ``begun``: whether the store has lines of the run; ``failure``: why the run failed, if it did; ``timing``: whether the
    autoregressive run is being timed; ``trace``: set with the first lines and with each end line.
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
        """The stage's value: a control line."""
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
    """Holder of a run's latest frame, written by the engine's thread and read by the page's generator.

    ``urgent``: whether the frame must be shown at once (first lines, end, failure); ``abandoned``: whether the run was stopped
    and its thread may write no more lines.
    """

    def __init__(self, frame: Frame, nothing: str = NOTHING_RUN) -> None:
        self.frame, self.cancel, self.nothing = frame, frame.cancel, nothing
        self.abandoned = self.over = self.ended_by_stop = self.fresh = self.urgent = False
        self.changed = threading.Condition()

    def lines(self, *, ended: bool = False) -> None:
        """Report the first lines or, with ``ended``, an end line."""
        with self.changed:
            self.ended_by_stop |= ended and self.cancel.is_set()
            self.put(urgent=True, begun=True)

    def status(self, message: str, share: float | None = None) -> None:
        """Report loading progress. Raises Interrupted if the run was stopped, to end a long download."""
        if self.cancel.is_set():
            raise Interrupted
        self.put(message=message, fraction=share)

    def stopped(self) -> str:
        """Return the message for a run that was stopped before the first step."""
        return self.cancel.reason or self.nothing

    def put(self, *, over: bool = False, urgent: bool = False, **news: Any) -> None:
        """Replace fields of the frame. ``over``: whether this is the last change."""
        with self.changed:
            if not self.over:
                self.frame = replace(self.frame, **news)
                self.fresh, self.urgent, self.over = self.fresh or bool(news), self.urgent or urgent, over
                self.changed.notify()

    def take(self, until: float) -> tuple[Frame, bool] | None:
        """Wait for a new frame and return it with its urgency; None after :data:`LOOK_SECONDS` without a change.

        A frame that is not urgent is returned no earlier than the time ``until``.
        """
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
    """Run ``work`` in a thread and yield the frames of ``sink``, each with its urgency.

    ``done``: called when the work ends, or :data:`GRACE_SECONDS` after a stop, possibly twice; ``is_wanted``: once False, the run
    is stopped; ``every``: minimum interval in seconds of frames that are not urgent. Closing the generator stops the run.
    """
    ended, context = threading.Event(), contextvars.copy_context()
    threading.Thread(target=context.run, args=(_work, work, sink, done, ended), daemon=True, name="specviz-engine").start()
    threading.Thread(target=_watch, args=(sink, done, ended), daemon=True, name="specviz-watch").start()
    until = 0.0
    try:
        while is_wanted():
            over = sink.over  # before take, so that the last frame is not missed
            if news := sink.take(until):
                yield news
                until = time.monotonic() + every
            elif over:
                break
    finally:
        sink.cancel.set()


def _watch(sink: StreamSink, done: Callable[[], None], ended: threading.Event) -> None:
    """Report a stop at once, and call ``done`` if the thread does not end within :data:`GRACE_SECONDS`."""
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
"""Interval in seconds at which the first run in the queue checks whether its client has connected."""

WAIT_SECONDS = 0.5
"""Interval in seconds at which a waiting run checks for a stop and a disconnected client."""

TELL_SECONDS = 3.0
"""Minimum interval of updates to a waiting page in seconds, because an update costs as much as decoding a token."""

CROWD = 4
"""Number of waiting runs from which runs are shortened, so that thirty visitors wait three minutes at most."""

CROWD_TOKENS = 32
CROWD_SECONDS = 5.0

ASIDE = (300.0, "An inspection may take 300 s here.")
"""Time limit in seconds for work other than runs, and the message."""

RECENT = 9
"""Number of recent durations used to estimate waiting times."""

UNFINISHED = "Stopped before it finished; there is nothing to show."

UNREAD = "The page that requested this run has disconnected, so the run was not started."


@dataclass(eq=False)
class Ticket:
    """A place in the queue, held until the run is over. ``leave`` may be called more than once."""

    queue: RunQueue
    kind: str
    started: float | None = None

    @property
    def ahead(self) -> list[Ticket]:
        """The tickets before this ticket."""
        with self.queue.changed:
            return self.queue.tickets[: self.queue.tickets.index(self)]

    @property
    def seconds(self) -> float | None:
        """Estimated waiting time in seconds, or None if unknown."""
        seconds = sum(ticket.left for ticket in self.ahead)
        return None if math.isnan(seconds) else seconds

    @property
    def left(self) -> float:
        """Estimated remaining time of this ticket's run in seconds: the median of recent runs minus the time spent.

        Beyond the median, only longer recent runs count. NaN if there are none.
        """
        spent = 0.0 if self.started is None else self.queue.clock() - self.started
        recent = list(self.queue.recent[self.kind])
        if recent and spent > statistics.median(recent):
            recent = [seconds for seconds in recent if seconds > spent]
        return statistics.median(recent) - spent if recent else math.nan

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for this ticket's turn. Returns whether it is this ticket's turn."""
        with self.queue.changed:
            return self.queue.changed.wait_for(lambda: self.queue.tickets[0] is self, seconds)

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
    """First-in, first-out queue of runs."""

    waiting: int
    clock: Callable[[], float] = time.monotonic
    tickets: list[Ticket] = field(default_factory=list)
    recent: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=RECENT)))
    """Recent durations by kind of run."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def join(self, kind: str = "run") -> Ticket:
        """Join the queue. ``kind``: work of similar duration. Raises SpecvizError if the queue is full."""
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
        """Number of runs that wait behind the first one."""
        return max(0, len(self.tickets) - 1)


@dataclass(eq=False)
class RunStream:
    """The engine shared by all visitors, which executes one run at a time."""

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
        """Yield the frames of a run. Raises SpecvizError if the queue is full.

        The run starts once ``caller`` is connected, and ends after ``caller`` has disconnected. ``memory``: by default, the
        page's memory.
        """

        def work(outlet: StreamSink) -> None:
            outlet.cancel.prepare(self.preparing_limit)
            self._write(request, memory or page.memory, outlet)

        return self._in_turn("run", page, caller, self.limit, work, baseline=request.baseline)

    def aside(self, page: PageSession, work: Callable[[Progress], None], caller: Caller) -> Generator[Frame, None, None]:
        """Yield the frames of work other than a run, which waits in the same queue.

        ``work``: takes a progress function, which raises Interrupted when the work must end.
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
        """Wait in the queue, run ``work`` and yield the frames. The place is free when the thread ends, or soon after a stop."""
        ticket, caller = self.queue.join(kind), caller or Caller()
        frame = Frame(page.begin(limit), self.streams.begin())
        over, has_turn = page.over, False
        try:
            refusal = yield from self._turn(ticket, frame, caller)
            if refusal:
                yield replace(frame, failure=refusal)
                return
            has_turn = True
            ticket.started = self.queue.clock()
            outlet = StreamSink(frame, nothing)
            with closing(pump(lambda: work(outlet), outlet, ticket.leave, is_wanted=lambda: not caller.gone)) as states:
                for state, urgent in states:
                    frame = replace(state, timing=frame.timing, failure=state.failure or frame.failure)
                    if state.begun and urgent:
                        frame = self._explained(frame, baseline, outlet.abandoned)
                    yield frame
            if frame.timing:  # stopped during the autoregressive run
                yield replace(frame, timing=False, trace=None)
        finally:
            self.streams.end(frame.key)
            over.set()
            if not has_turn:
                ticket.leave()
            if not frame.begun:
                self.store.drop(frame.key)

    def limit(self) -> tuple[float, str]:
        """Return the time limit of a run in seconds, and the message."""
        limits = [(math.inf, "")]
        if self.seconds:
            limits.append((float(self.seconds), f"A run may take {self.seconds} s here."))
        if self.crowded:
            limits.append((CROWD_SECONDS, f"While {self.queue.behind} runs waited, the time limit was {CROWD_SECONDS:g} s."))
        return min(limits)

    def preparing_limit(self) -> tuple[float, str]:
        """Return the time limit of fetching and loading in seconds, and the message. Unlimited if no other run waits."""
        if not self.queue.behind:
            return math.inf, ""
        return self.preparing, (
            f"Fetching and loading the model took more than the {self.preparing:g} s allowed while other runs wait. Try again "
            "later; the files fetched so far are kept."
        )

    @property
    def crowded(self) -> bool:
        """Whether so many runs wait that runs are shortened."""
        return self.queue.behind >= CROWD

    def _turn(self, ticket: Ticket, frame: Frame, caller: Caller) -> Generator[Frame, None, str]:
        """Yield frames until this run's turn. Returns an empty string, or the reason why the run does not start."""
        last_message, last_time = "", 0.0
        while True:
            turn = ticket.wait(WAIT_SECONDS)
            if frame.cancel.is_set():
                return "Stopped while waiting in line; nothing was run."
            if turn and caller.connected:
                return ""
            if caller.gone:
                return UNREAD
            if turn:  # the client has not connected yet
                frame.cancel.wait(CONNECT_SECONDS)
                continue
            if (message := self._ahead(ticket)) != last_message and time.monotonic() - last_time >= TELL_SECONDS:
                yield replace(frame, message=message)
                last_message, last_time = message, time.monotonic()

    def _ahead(self, ticket: Ticket) -> str:
        count, seconds = len(ticket.ahead), ticket.seconds
        word = f"Waiting for the engine: {count} {'run is' if count == 1 else 'runs are'} ahead of yours"
        if seconds is not None:
            word += f", about {max(5, 5 * round(seconds / 5))} s" if seconds < 60 else f", about {round(seconds / 60)} min"
        word += "."
        if self.crowded:
            word += f" While so many runs wait, each is limited to {CROWD_TOKENS} tokens and {CROWD_SECONDS:g} s."
        return word

    def _write(self, request: Request, memory: Memory, outlet: StreamSink) -> None:
        """Run the request and write the trace lines to the store. The first two lines are written together."""
        requested_tokens = request.max_new_tokens
        if self.crowded:
            request = replace(request, max_new_tokens=min(requested_tokens, CROWD_TOKENS))
        writer, opening, key = TraceWriter(), list[str](), outlet.frame.key
        with closing(self.stream(request, memory, outlet.cancel, outlet.status)) as events:
            for event in events:
                if outlet.abandoned:  # the end line is already written
                    raise Interrupted
                if isinstance(event, Run):  # the stage keeps the previous run until the first step
                    if event.max_new_tokens == request.max_new_tokens < requested_tokens:
                        warning = (
                            f"Because many runs are waiting, this run is limited to {request.max_new_tokens} tokens instead of "
                            f"{requested_tokens}. Run again later for the full length."
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
        """Return the frame with the trace. An abandoned run gets an end record, which its thread may not write."""
        text, trace, failure = self.store.text(frame.key), None, frame.failure
        try:
            trace = traces.read(text.encode()) if text else None
        except BadTrace as error:
            failure = failure or f"The trace of this run is invalid, so the run cannot be explained or saved: {error}"
        if abandoned and trace and not trace.end:
            ended = trace.replace(end=stopped(trace, frame.cancel.reason))
            self.store.append(frame.key, traces.lines(ended)[-1])
            return self._explained(frame, baseline, abandoned=False)
        # The autoregressive run follows a run that ended by itself.
        end = trace and trace.end
        timing = bool(baseline and end and end.baseline is None and end.reason in ("eos", "budget", "context"))
        return replace(frame, failure=failure, timing=timing, trace=trace)
