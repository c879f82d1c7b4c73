"""Event handlers of a run's tab as plain functions: recorded runs, live runs, stopping."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass

from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.trace.schema import Run, Trace
from specviz.ui.shared import AppState
from specviz.ui.shown import MINE
from specviz.ui.stream.live import Frame
from specviz.ui.stream.presence import Caller

STOPPED = ("Stopped",)


@dataclass(frozen=True)
class Change:
    """What is to change on the page; None leaves a part as it is.

    ``feed`` is the stage's text, ``shown`` the run's name, ``kept`` says that it joins this session's list, ``asked`` is
    a run whose settings the controls take over. ``timing`` says that the autoregressive run is still to come.
    """

    feed: str | None = None
    shown: str | None = None
    trace: Trace | None = None
    banner: str | None = None
    note: bool = False
    running: bool | None = None
    kept: bool = False
    timing: bool = False
    asked: Run | None = None


def recording(shared: AppState, session: str | None, name: str) -> Change:
    """Play a run, recorded or kept, and set the controls to what it was asked."""
    try:
        trace = shared.archive.trace(name)
        if visit := shared.visits.find(session):
            visit.turn_away()
        return Change(shared.archive.feed(name), name, trace, "", running=False, asked=trace.run)
    except SpecvizError as error:
        return Change(banner=str(error))


def running(shared: AppState, caller: Caller, shown: str, ask: Callable[[], Request]) -> Generator[Change, None, None]:
    """Run what ``ask`` makes of a tab's controls. A run that never began leaves the page as it was, and says why."""
    try:
        request = ask()
        visit = shared.visits.enter(caller.session, caller.address)
        yield Change(running=True, banner="")
        last: Trace | None = None
        with closing(shared.live.run(visit, request, caller.reader())) as frames:
            for frame in frames:
                if not visit.current(frame.cancel):
                    return
                last = frame.trace or last
                yield _changed(shared, shown, frame)
        if last is not None:
            yield Change(trace=last)
    except SpecvizError as error:
        yield Change(banner=str(error))
    yield Change(running=False)


def _changed(shared: AppState, shown: str, frame: Frame) -> Change:
    if frame.failure and not frame.lines:
        before = shared.archive.trace(shown) if shown else None
        note = frame.failure.startswith(STOPPED)
        return Change(feed=shared.archive.feed(shown), trace=before, banner=frame.failure, note=note)
    if not frame.lines:
        return Change(frame.feed)
    return Change(frame.feed, MINE + frame.key, frame.trace, frame.failure or None, kept=True, timing=frame.timing)


def stop(shared: AppState, session: str | None) -> None:
    """End this page's run at its next step."""
    if visit := shared.visits.find(session):
        visit.stop()
