"""Life of a live run on the page: wait in the queue, start the engine, pass on its lines, keep the trace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Event

from specviz.engine.stop import NOTHING_RUN, Interrupted, stop_reason
from specviz.errors import BadTrace
from specviz.pipeline.request import Memory, Request
from specviz.trace import store as traces
from specviz.trace.schema import End, Run, Trace
from specviz.trace.store import TraceWriter
from specviz.ui.session import PageSession
from specviz.ui.stream.engine import Progress, Stream, stopped
from specviz.ui.stream.feed import Feed
from specviz.ui.stream.presence import Reader
from specviz.ui.stream.run_queue import RunQueue, Ticket
from specviz.ui.stream.sse import Tails
from specviz.ui.stream.stream_worker import Batch, StreamSink, pump

CONNECT_SECONDS = 0.05
"""Seconds between two checks, at a run's turn, whether its reader has connected."""

WAIT_SECONDS = 0.5
"""Seconds between two checks whether a waiting run is still wanted."""

TELL_SECONDS = 3.0
"""Least seconds between two updates of a page that waits: an answer through the queue costs as much as decoding a token."""

CROWD = 4
"""Waiting runs from which on every run is kept short, so that each of thirty visitors sees one within three minutes."""

CROWD_TOKENS = 32
CROWD_SECONDS = 5.0

ASIDE = (300.0, "An inspection has 300 s here.")
"""Time limit in seconds of work that is no run, and its message."""

UNFINISHED = "Stopped before it was over; there is nothing to show."

UNREAD = "Nobody listened to this run any more, so its place went to the next one."

TAIL_FRAME_SECONDS = 2.0
"""Seconds between two frames of a run whose lines already reach its page as server-sent events."""


@dataclass(frozen=True)
class Frame:
    """One update of the page. ``cancel`` stops this run.

    ``trace`` comes with the first lines and with every end line; ``failure`` when the run broke off or, without ``lines``,
    never began. ``timing``: this run is over, and its autoregressive run is still to come. ``said`` is a progress message.
    """

    cancel: Event
    feed: str | None = None
    key: str = ""
    trace: Trace | None = None
    failure: str = ""
    lines: int = 0
    timing: bool = False
    said: str = ""


class Live:
    """The engine shared by all visitors: one run at a time."""

    def __init__(
        self, stream: Stream, queue: RunQueue, tails: Tails, seconds: int | None = None, preparing: float = math.inf
    ) -> None:
        self.stream = stream
        self.seconds = seconds
        self.preparing = preparing
        self.queue = queue
        self.tails = tails
        self.store = tails.store

    def run(
        self, page: PageSession, request: Request, reader: Reader | None = None, memory: Memory | None = None
    ) -> Generator[Frame, None, None]:
        """Yield frames of one run: many a second, few while its page reads the SSE. Raises LineFull before the page changes.

        A run starts once its ``reader`` is connected, and ends when the reader has gone. ``memory`` replaces the page's own.
        """
        ticket, reader = self.queue.join(), reader or Reader(lambda: True)
        cancel, feed = page.begin(self.limit), Feed(self.store.new())
        over, has_turn = page.over, False
        try:
            refusal = yield from self._turn(ticket, cancel, feed, reader)
            if refusal:
                yield Frame(cancel, failure=refusal)
                return
            has_turn = True
            ticket.start()
            cancel.prepare(self.preparing_limit)
            yield from self._engine(memory or page.memory, cancel, request, feed, ticket, reader)
        finally:
            self.tails.end(feed.run)
            over.set()
            if not has_turn:
                ticket.leave()
            if not feed.count:
                self.store.drop(feed.run)

    def aside(self, page: PageSession, work: Callable[[Progress], None], reader: Reader) -> Generator[Frame, None, None]:
        """Yield frames of other work, which takes its turn among the runs and ends as they do.

        ``work`` receives a progress function, which raises Interrupted once the work must end.
        """
        ticket, has_turn = self.queue.join("aside"), False
        cancel = page.begin(lambda: min(self.limit(), ASIDE))
        over = page.over

        def watched(outlet: StreamSink) -> None:
            cancel.begin()
            try:
                work(outlet.status)
            except Interrupted:
                outlet.failure(stop_reason(cancel) or UNFINISHED)

        try:
            refusal = yield from self._turn(ticket, cancel, Feed(""), reader)
            if refusal:
                yield Frame(cancel, failure=refusal)
                return
            has_turn = True
            ticket.start()
            with closing(pump(watched, cancel, ticket.leave, is_wanted=lambda: not reader.gone)) as batches:
                for batch in batches:
                    failure = (stop_reason(cancel) or UNFINISHED) if batch.abandoned else batch.failure
                    yield Frame(cancel, said=_word(*batch.status) if batch.status else "", failure=failure)
        finally:
            over.set()
            if not has_turn:
                ticket.leave()

    def limit(self) -> tuple[float, str]:
        """Most seconds that the current run may compute, and the reason."""
        limits = [(math.inf, "")]
        if self.seconds:
            limits.append((float(self.seconds), f"A run has {self.seconds} s here."))
        if self.crowded:
            limits.append((CROWD_SECONDS, f"While {self.queue.behind} more were waiting, it had {CROWD_SECONDS:g} s."))
        return min(limits)

    def preparing_limit(self) -> tuple[float, str]:
        """Most seconds that fetching and loading may take now, and the reason: limited only while other runs wait."""
        if not self.queue.behind:
            return math.inf, ""
        return self.preparing, (
            f"Fetching and loading the model took more than the {self.preparing:g} s it has while others wait. Try again later: "
            "what was fetched is kept."
        )

    @property
    def crowded(self) -> bool:
        """Whether so many wait that runs are kept short."""
        return self.queue.behind >= CROWD

    def _turn(self, ticket: Ticket, cancel: Event, feed: Feed, reader: Reader) -> Generator[Frame, None, str]:
        """Yield frames until this run's turn. Returns an empty text then, or the reason why the turn never comes."""
        last_message, last_time = "", 0.0
        while True:
            turn = ticket.wait(WAIT_SECONDS)
            if cancel.is_set():
                return "Stopped while waiting in line; nothing was run."
            if turn and reader.connected:
                return ""
            if reader.gone:
                return UNREAD
            if turn:  # the reader is about to connect; the queue stands still
                cancel.wait(CONNECT_SECONDS)
                continue
            if (message := self._ahead(ticket)) != last_message and time.monotonic() - last_time >= TELL_SECONDS:
                feed.say(message)
                yield Frame(cancel, feed.text, feed.run, said=message)
                last_message, last_time = message, time.monotonic()

    def _ahead(self, ticket: Ticket) -> str:
        count, seconds = ticket.ahead, ticket.seconds
        word = f"Waiting for the engine: {count} {'run is' if count == 1 else 'runs are'} ahead of yours"
        word += f", {_about(seconds)}." if seconds is not None else "."
        if self.crowded:
            word += f" While so many wait, a run writes at most {CROWD_TOKENS} tokens and has {CROWD_SECONDS:g} s."
        return word

    def _engine(
        self, memory: Memory, cancel: Event, request: Request, feed: Feed, ticket: Ticket, reader: Reader
    ) -> Generator[Frame, None, None]:
        """Yield frames of the run. ``ticket`` is released when the engine's thread ends, or soon after the run was stopped."""
        requested_tokens = request.max_new_tokens
        if self.crowded:
            request = replace(request, max_new_tokens=min(requested_tokens, CROWD_TOKENS))

        def work(outlet: StreamSink) -> None:
            writer, opening = TraceWriter(), list[str]()
            with closing(self.stream(request, memory, cancel, outlet.status)) as events:
                for event in events:
                    if outlet.abandoned.is_set():  # the run already has an end, after which no line may come
                        raise Interrupted
                    if isinstance(event, Run) and event.max_new_tokens == request.max_new_tokens < requested_tokens:
                        shortened = _shortened(requested_tokens, request.max_new_tokens)
                        event = event.replace(warnings=(*event.warnings, shortened))
                    line = writer.add(event)
                    self.store.append(feed.run, line)
                    if isinstance(event, Run):  # the stage keeps the earlier run until this one has something to show
                        opening.append(line)
                        continue
                    if opening and isinstance(event, End) and event.reason == "cancelled":
                        raise Interrupted
                    while opening:
                        outlet.line(opening.pop())
                    outlet.line(line, ended=isinstance(event, End))

        self.tails.begin(feed.run)
        timing = False
        with closing(pump(work, cancel, ticket.leave, is_wanted=lambda: not reader.gone)) as batches:
            for frame in self._needed_frames(self._frame(cancel, feed, batch, request.baseline) for batch in batches):
                timing = frame.timing or (timing and frame.trace is None)
                yield frame
        if timing:  # stopped before the autoregressive run was over
            feed.timing(False)
            yield Frame(cancel, feed.text, feed.run, lines=feed.count)

    def _needed_frames(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Yield the frames that a page requires: all of them, unless it reads the run's lines as server-sent events."""
        last_time, pending = 0.0, None
        for pending in frames:
            is_news = pending.trace is not None or pending.failure or not pending.lines
            if is_news or time.monotonic() - last_time >= TAIL_FRAME_SECONDS or not self.tails.watched(pending.key):
                yield pending
                last_time, pending = time.monotonic(), None
        if pending is not None:
            yield pending

    def _frame(self, cancel: Event, feed: Feed, batch: Batch, baseline: bool) -> Frame:
        if batch.abandoned:
            self._end(feed, batch, stop_reason(cancel))
        first = not feed.count and bool(batch.lines)
        if batch.status is not None and not feed.count:
            feed.say(*batch.status)
        feed.add(batch.lines)
        trace, failure = None, batch.failure
        if feed.count and (first or batch.ended or batch.failure):
            trace, broken = self._trace(feed.run)
            failure = failure or broken
        if failure and feed.count:
            feed.fail(failure)
        timing = baseline and batch.ended and trace is not None and _still_to_time(trace)
        if timing:
            feed.timing(True)
        return Frame(cancel, feed.text, feed.run, trace, failure, feed.count, timing)

    def _end(self, feed: Feed, batch: Batch, limit: str) -> None:
        """Add the end that a stopped run's thread did not write; without any line, set a failure instead."""
        if not feed.count and not batch.lines:
            batch.failure = limit or NOTHING_RUN
            return
        trace, _ = self._trace(feed.run)
        if trace is not None and trace.end is None:
            end = stopped(trace, limit)
            batch.lines.append(traces.lines(Trace(trace.run, trace.steps, end))[-1])
            self.store.append(feed.run, batch.lines[-1])
            batch.ended = True

    def _trace(self, key: str) -> tuple[Trace | None, str]:
        """Return the run so far, None before its first line; and the fault of a file that breaks the format."""
        text = self.store.text(key)
        try:
            return (traces.read(text.encode()) if text else None), ""
        except BadTrace as error:
            return None, f"This run's own file breaks the trace format, so it cannot be explained or saved: {error}"


def _still_to_time(trace: Trace) -> bool:
    """Whether the engine continues with the autoregressive run, as it does after a run that ended by itself."""
    return trace.end is not None and trace.end.baseline is None and trace.end.reason in ("eos", "budget", "context")


def _word(message: str, share: float | None) -> str:
    return message if share is None else f"{message} · {share:.0%}"


def _shortened(requested: int, allowed: int) -> str:
    return (
        f"So many wait for the engine that this run writes {allowed} tokens at most instead of {requested}. Run it again later."
    )


def _about(seconds: float) -> str:
    """Format a waiting time, no more precisely than it is known."""
    if seconds < 60:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {round(seconds / 60)} min"
