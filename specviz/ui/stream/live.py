"""Life of a live run: wait in the queue, start the engine, keep its lines where the page's events read them, report its state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Event

from specviz.engine.stop import NOTHING_RUN, Interrupted, stop_reason
from specviz.errors import BadTrace
from specviz.pipeline.request import Memory, Request
from specviz.trace import store as traces
from specviz.trace.schema import End, Run, Trace
from specviz.trace.wire import TraceWriter
from specviz.ui.session import PageSession
from specviz.ui.stream.engine import Progress, Stream, stopped
from specviz.ui.stream.feed import Feed
from specviz.ui.stream.presence import Reader
from specviz.ui.stream.run_queue import RunQueue, Ticket
from specviz.ui.stream.sse import EventStreams
from specviz.ui.stream.stream_worker import Batch, StreamSink, pump

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
    """Update on a run, without its lines. ``cancel`` stops this run, ``feed`` is the stage's text.

    ``begun``: the store has lines of the run under ``key``. ``trace`` comes with the first lines and with every end line,
    ``failure`` when the run broke off or never began. ``timing``: this run is over, and its autoregressive run is still to come.
    ``said`` is a progress message.
    """

    cancel: Event
    feed: str | None = None
    key: str = ""
    trace: Trace | None = None
    failure: str = ""
    begun: bool = False
    timing: bool = False
    said: str = ""


class Live:
    """The engine shared by all visitors: one run at a time."""

    def __init__(
        self, stream: Stream, queue: RunQueue, streams: EventStreams, seconds: int | None = None, preparing: float = math.inf
    ) -> None:
        self.stream = stream
        self.seconds = seconds
        self.preparing = preparing
        self.queue = queue
        self.streams = streams
        self.store = streams.store

    def run(
        self, page: PageSession, request: Request, reader: Reader | None = None, memory: Memory | None = None
    ) -> Generator[Frame, None, None]:
        """Yield the frames of one run. Raises LineFull before the page changes.

        A run starts once its ``reader`` is connected, and ends when the reader has left. ``memory`` replaces the page's own.
        """
        ticket, reader = self.queue.join(), reader or Reader(lambda: True)
        cancel, feed = page.begin(self.limit), Feed(self.streams.begin())
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
            self.streams.end(feed.run)
            over.set()
            if not has_turn:
                ticket.leave()
            if not feed.follow:
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
                feed.message = message
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
                        self.store.append(feed.run, line)
                    opening.clear()
                    if begins or is_end:
                        outlet.lines(ended=is_end)

        with closing(pump(work, cancel, ticket.leave, is_wanted=lambda: not reader.gone)) as batches:
            for batch in batches:
                yield self._frame(cancel, feed, batch, request.baseline)
        if feed.timing:  # stopped before the autoregressive run was over
            feed.timing = False
            yield Frame(cancel, feed.text, feed.run, begun=feed.follow)

    def _frame(self, cancel: Event, feed: Feed, batch: Batch, baseline: bool) -> Frame:
        if batch.abandoned:
            self._end(feed, batch, stop_reason(cancel))
        first = batch.lines and not feed.follow
        feed.follow = feed.follow or batch.lines
        if batch.ended:
            feed.message, feed.fraction = "", None
        elif batch.status is not None:
            feed.message, feed.fraction = batch.status
        trace, failure = None, batch.failure
        if feed.follow and (first or batch.ended or batch.failure):
            trace, broken = self._trace(feed.run)
            failure = failure or broken
        if batch.ended:
            feed.timing = baseline and trace is not None and _still_to_time(trace)
        feed.error = failure or feed.error
        return Frame(cancel, feed.text, feed.run, trace, failure, feed.follow, feed.timing)

    def _end(self, feed: Feed, batch: Batch, limit: str) -> None:
        """Add the end that a stopped run's thread did not write; without any line, set a failure instead."""
        if not feed.follow and not batch.lines:
            batch.failure = limit or NOTHING_RUN
            return
        trace, _ = self._trace(feed.run)
        if trace is not None and trace.end is None:
            end = stopped(trace, limit)
            self.store.append(feed.run, traces.lines(Trace(trace.run, trace.steps, end))[-1])
            batch.lines = batch.ended = True

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


def _about(seconds: float) -> str:
    """Format a waiting time, no more precisely than it is known."""
    if seconds < 60:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {round(seconds / 60)} min"
