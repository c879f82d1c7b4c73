"""Life of a live run: wait in the queue, start the engine, keep its lines where the page's events read them, report its state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from specviz.engine.stop import NOTHING_RUN, Interrupted, Limit, Stop, stop_reason
from specviz.errors import BadTrace
from specviz.pipeline.request import Memory, Request
from specviz.trace import store as traces
from specviz.trace.schema import End, Run, Trace
from specviz.trace.wire import TraceWriter
from specviz.ui.session import PageSession
from specviz.ui.stream.engine import Progress, Stream, stopped
from specviz.ui.stream.presence import Caller
from specviz.ui.stream.run_queue import RunQueue, Ticket
from specviz.ui.stream.sse import EventStreams
from specviz.ui.stream.stream_worker import Batch, StreamSink, pump
from specviz.viewer.component import control

CONNECT_SECONDS = 0.05
"""Seconds between two checks, at a run's turn, whether its reader has connected."""

WAIT_SECONDS = 0.5
"""Seconds between two checks whether a waiting run is still wanted."""

TELL_SECONDS = 3.0
"""Minimum seconds between two updates of a waiting page: an answer through the queue costs as much as decoding a token."""

CROWD = 4
"""Number of waiting runs from which every run is shortened, so that each of thirty visitors sees one within three minutes."""

CROWD_TOKENS = 32
CROWD_SECONDS = 5.0

ASIDE = (300.0, "An inspection has 300 s here.")
"""Time limit in seconds of work other than runs, and its message."""

UNFINISHED = "Stopped before it was over; there is nothing to show."

UNREAD = "Nobody listened to this run any more, so its place went to the next one."


@dataclass(frozen=True)
class Frame:
    """State of a run, without its lines. ``cancel`` stops this run.

    ``message`` and ``fraction`` describe the progress before the first step. ``begun``: the store has lines of the run under
    ``key``, which stay on the stage even if there is a ``failure``, the reason why it broke off or never began. ``trace`` comes
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
        """Yield the frames of one run. Raises LineFull before the page changes.

        A run starts once its ``caller`` is connected, and ends when it has left. ``memory`` replaces the page's own.
        """

        def work(frame: Frame, outlet: StreamSink) -> None:
            frame.cancel.prepare(self.preparing_limit)
            self._write(frame, request, memory or page.memory, outlet)

        return self._in_turn("run", page, caller, self.limit, work, baseline=request.baseline)

    def aside(self, page: PageSession, work: Callable[[Progress], None], caller: Caller) -> Generator[Frame, None, None]:
        """Yield frames of other work, which takes its turn among the runs and ends as they do.

        ``work`` receives a progress function, which raises Interrupted once the work must end.
        """

        def watched(frame: Frame, outlet: StreamSink) -> None:
            frame.cancel.begin()
            work(outlet.status)

        return self._in_turn("aside", page, caller, lambda: min(self.limit(), ASIDE), watched, UNFINISHED)

    def _in_turn(
        self,
        kind: str,
        page: PageSession,
        caller: Caller | None,
        limit: Limit,
        work: Callable[[Frame, StreamSink], None],
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
            batches = pump(partial(work, frame), frame.cancel, ticket.leave, is_wanted=lambda: not caller.gone, nothing=nothing)
            with closing(batches):
                for batch in batches:
                    frame = self._next(frame, batch, baseline)
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
            limits.append((float(self.seconds), f"A run has {self.seconds} s here."))
        if self.crowded:
            limits.append((CROWD_SECONDS, f"While {self.queue.behind} more were waiting, it had {CROWD_SECONDS:g} s."))
        return min(limits)

    def preparing_limit(self) -> tuple[float, str]:
        """Return the maximum seconds for fetching and loading, and the reason: limited only while other runs wait."""
        if not self.queue.behind:
            return math.inf, ""
        return self.preparing, (
            f"Fetching and loading the model took more than the {self.preparing:g} s it has while others wait. Try again later: "
            "what was fetched is kept."
        )

    @property
    def crowded(self) -> bool:
        """Whether so many runs wait that every run is shortened."""
        return self.queue.behind >= CROWD

    def _turn(self, ticket: Ticket, frame: Frame, caller: Caller) -> Generator[Frame, None, str]:
        """Yield frames until this run's turn. Returns an empty text then, or the reason why the turn never comes."""
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
        word += f", {_about(seconds)}." if seconds is not None else "."
        if self.crowded:
            word += f" While so many wait, a run writes at most {CROWD_TOKENS} tokens and has {CROWD_SECONDS:g} s."
        return word

    def _write(self, frame: Frame, request: Request, memory: Memory, outlet: StreamSink) -> None:
        """Run the request and write its lines into the store, the first one together with the second."""
        requested_tokens = request.max_new_tokens
        if self.crowded:
            request = replace(request, max_new_tokens=min(requested_tokens, CROWD_TOKENS))
        writer, opening = TraceWriter(), list[str]()
        with closing(self.stream(request, memory, frame.cancel, outlet.status)) as events:
            for event in events:
                if outlet.abandoned:  # the run already has an end, after which no line may come
                    raise Interrupted
                if isinstance(event, Run):  # the stage keeps the earlier run until this one has something to show
                    if event.max_new_tokens == request.max_new_tokens < requested_tokens:
                        warning = (
                            f"So many wait for the engine that this run writes {request.max_new_tokens} tokens at most "
                            f"instead of {requested_tokens}. Run it again later."
                        )
                        event = event.replace(warnings=(*event.warnings, warning))
                    opening.append(writer.add(event))
                    continue
                is_end, begins = isinstance(event, End), bool(opening)
                if begins and isinstance(event, End) and event.reason == "cancelled":
                    raise Interrupted
                for line in (*opening, writer.add(event)):
                    self.store.append(frame.key, line)
                opening.clear()
                if begins or is_end:
                    outlet.lines(ended=is_end)

    def _next(self, frame: Frame, batch: Batch, baseline: bool) -> Frame:
        """Return the state after a batch of news."""
        begun = frame.begun or batch.lines
        if batch.abandoned and begun:  # its thread writes no end
            trace, _ = self._trace(frame.key)
            if trace is not None and trace.end is None:
                closing_line = traces.lines(trace.replace(end=stopped(trace, stop_reason(frame.cancel))))[-1]
                self.store.append(frame.key, closing_line)
                batch.ended = True
        message, fraction = ("", None) if batch.ended else batch.status or (frame.message, frame.fraction)
        trace, failure, timing = None, batch.failure or frame.failure, frame.timing
        if begun and (not frame.begun or batch.ended or batch.failure):
            trace, broken = self._trace(frame.key)
            failure = failure or broken
        if batch.ended:
            # The engine goes on with the autoregressive run after a run that ended by itself.
            end = trace and trace.end
            timing = bool(baseline and end and end.baseline is None and end.reason in ("eos", "budget", "context"))
        return Frame(frame.cancel, frame.key, message, fraction, begun, failure, timing, trace)

    def _trace(self, key: str) -> tuple[Trace | None, str]:
        """Return the run so far, None before its first line; and the fault of a file that breaks the format."""
        text = self.store.text(key)
        try:
            return (traces.read(text.encode()) if text else None), ""
        except BadTrace as error:
            return None, f"This run's own file breaks the trace format, so it cannot be explained or saved: {error}"


def _about(seconds: float) -> str:
    """Format a waiting time, no more precisely than it is known."""
    if seconds < 60:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {round(seconds / 60)} min"
