"""Event handlers of a run's tab as plain functions: recorded runs, live runs, stopping."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.pipeline.request import Request
from specviz.trace.schema import Run, Trace
from specviz.ui.app_state import AppState
from specviz.ui.run_lookup import MINE
from specviz.ui.stream.live import Frame
from specviz.ui.stream.presence import Caller
from specviz.ui.widgets import panels

STOPPED = ("Stopped",)
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
"""Options of the page's events: no progress overlay, not in the API, no limit on concurrency."""


@dataclass(frozen=True)
class Change:
    """Update of the page; None leaves a part as it is.

    ``feed`` is the stage's text, ``run_name`` the run's name; ``joins_session`` adds the run to this session's list. The controls
    take over the settings of ``settings_run``. ``timing``: the autoregressive run is still to come.
    """

    feed: str | None = None
    run_name: str | None = None
    trace: Trace | None = None
    banner: str | None = None
    note: bool = False
    running: bool | None = None
    joins_session: bool = False
    timing: bool = False
    settings_run: Run | None = None


def recording(shared: AppState, session: str | None, name: str) -> Change:
    """Play a run, recorded or kept, and set the controls to its settings."""
    try:
        trace = shared.archive.trace(name)
        if page := shared.pages.find(session):
            page.turn_away()
        return Change(shared.archive.feed(name), name, trace, "", running=False, settings_run=trace.run)
    except SpecvizError as error:
        return Change(banner=str(error))


def running(shared: AppState, caller: Caller, run_name: str, ask: Callable[[], Request]) -> Generator[Change, None, None]:
    """Run the request that ``ask`` builds from a tab's controls. For a run that never began, only the banner shows the reason."""
    try:
        request = ask()
        page = shared.pages.enter(caller.session, caller.address)
        yield Change(running=True, banner="")
        last: Trace | None = None
        with closing(shared.live.run(page, request, caller.reader())) as frames:
            for frame in frames:
                if not page.current(frame.cancel):
                    yield Change()  # a handler's last answer is sent again when it is over
                    return
                last = frame.trace or last
                yield _changed(shared, run_name, frame)
        if last:
            if not page.current(frame.cancel):
                yield Change()
                return
            yield Change(trace=last)
    except SpecvizError as error:
        yield Change(banner=_refused(shared, run_name, str(error)))
    yield Change(running=False)


def _refused(shared: AppState, run_name: str, reason: str) -> str:
    """Return the reason why there is no run, and the title of the run that the stage still shows."""
    recording = shared.archive.gallery.recordings.get(run_name)
    shown = f"“{recording.title}”" if recording else "the earlier run"
    return f"{reason} The stage still shows {shown}." if run_name else reason


def _changed(shared: AppState, run_name: str, frame: Frame) -> Change:
    if frame.failure and not frame.begun:
        earlier = shared.archive.trace(run_name) if run_name else None
        note = frame.failure.startswith(STOPPED)
        banner = frame.failure if note else _refused(shared, run_name, frame.failure)
        return Change(feed=shared.archive.feed(run_name), trace=earlier, banner=banner, note=note)
    if not frame.begun:
        return Change(frame.feed)
    return Change(frame.feed, MINE + frame.key, frame.trace, frame.failure or None, joins_session=True, timing=frame.timing)


def stop(shared: AppState, session: str | None) -> None:
    """End this page's run at its next step."""
    if page := shared.pages.find(session):
        page.stop()


def wire_stop(shared: AppState, button: gr.Button) -> None:
    """Connect a button that stops this page's run at its next step and then shows that it is stopping."""

    def halt(request: gr.Request) -> gr.Button:
        stop(shared, request.session_hash)
        return panels.stop_button(stopping=True)

    button.click(halt, None, button, queue=False, show_progress="hidden", api_visibility="private")


def stopping(shared: AppState, session: str | None) -> bool:
    """Whether this page's run was stopped and has not ended yet."""
    page = shared.pages.find(session)
    return page is not None and page.running and page.cancel is not None and page.cancel.is_set()


def merge_updates(updates: Iterator[dict[Any, Any]]) -> Iterator[dict[Any, Any]]:
    """Merge each dictionary over the earlier ones.

    Gradio sends only the difference from the previous answer and edits that answer in place in the browser, which draws when
    it has time. So an update that the next answer omits may never be drawn. An empty dictionary drops all earlier ones.
    """
    sent: dict[Any, Any] = {}
    for update in updates:
        sent = {**sent, **update} if update else {}
        yield sent
