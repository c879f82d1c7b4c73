"""What clicking does on the Text tab: nothing that was there is lost when something goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

import gradio as gr
import pytest
from msgspec.structs import replace

from specviz.ui.app_state import AppState
from specviz.ui.run_lookup import MINE
from specviz.ui.stream.presence import Caller
from specviz.ui.tabs import request_form, text_run
from specviz.ui.tabs.text_run import Change, merge_updates
from specviz.ui.tabs.text_tab import TextTab
from tests.support.fakes.ui import FakeEngine, Refused, app, asked


@pytest.fixture
def shared(tmp_path: Path) -> AppState:
    return app(tmp_path)


def live(shared: AppState, session: str = "a", shown: str = "", **changes: str) -> Generator[Change, None, None]:
    wanted = asked(shared, **changes)
    return text_run.running(shared, Caller(session), shown, lambda: request_form.request(wanted, shared.settings))


def run(shared: AppState, session: str = "a", shown: str = "token_recycling", **changes: str) -> list[Change]:
    return list(live(shared, session, shown, **changes))


def test_a_recorded_run_plays_and_sets_the_controls(shared: AppState) -> None:
    change = text_run.recording(shared, "a", "stand")
    assert change.feed is not None and '"mode":"recorded"' in change.feed and change.run_name == "stand"
    assert change.settings_run is not None and change.settings_run.method == "stand"


def test_a_name_that_is_no_recording_is_told_and_nothing_changes(shared: AppState) -> None:
    change = text_run.recording(shared, "a", "../../etc/passwd")
    assert change == Change(banner=change.banner) and "There is no recorded run" in (change.banner or "")


def test_a_live_run_streams_is_kept_and_explained(shared: AppState) -> None:
    changes = run(shared)
    assert changes[0].running is True and changes[-1].running is False
    name = next(change.run_name for change in changes if change.joins_session)
    assert name is not None and name.startswith(MINE)
    traces = [change.trace for change in changes if change.trace is not None]
    assert traces[-1].end is not None and traces[-1].end.baseline is not None
    assert shared.archive.trace(name) == traces[-1]


def test_bad_input_leaves_the_stage_alone(shared: AppState) -> None:
    changes = run(shared, prompt="")
    assert "The prompt is empty" in "".join(change.banner or "" for change in changes)
    assert all(change.feed is None and change.run_name is None for change in changes) and changes[-1].running is False


def test_a_model_that_cannot_be_had_gives_the_earlier_run_back(tmp_path: Path) -> None:
    shared = app(tmp_path, FakeEngine(breaks=Refused("The model cannot be fetched; check the network.")))
    changes = run(shared)
    back = [change for change in changes if change.banner]
    title = shared.archive.gallery.get("token_recycling").title
    assert back[-1].banner == f"The model cannot be fetched; check the network. The stage still shows “{title}”."
    assert back[-1].feed == shared.archive.feed("token_recycling")
    assert all(change.run_name is None for change in changes)


def test_a_run_stopped_before_its_first_step_leaves_the_explanation_of_the_one_that_stays(tmp_path: Path) -> None:
    shared = app(tmp_path, FakeEngine(pace=60.0, reading=("Reading the prompt: 5 of 9 tokens", 0.5)))
    changes = []
    for change in live(shared, shown="token_recycling"):
        changes.append(change)
        if "Reading the prompt" in (change.feed or ""):
            text_run.stop(shared, "a")
    explained = [change.trace for change in changes if change.trace is not None]
    assert explained == [shared.archive.trace("token_recycling")] and changes[-1].running is False


def test_a_recording_chosen_during_a_run_is_not_overwritten_by_it(tmp_path: Path) -> None:
    shared, seen, begun = app(tmp_path, FakeEngine(steps=300, pace=0.02)), [], threading.Event()

    def page() -> None:
        for change in live(shared):
            seen.append(change)
            if change.run_name:
                begun.set()

    running = threading.Thread(target=page)
    running.start()
    assert begun.wait(20)
    seen.append(text_run.recording(shared, "a", "stand"))
    chosen = len(seen)
    running.join(20)
    assert not running.is_alive()
    assert [change for change in seen[chosen:] if change.feed is not None] == []
    assert seen[chosen - 1].run_name == "stand"
    # Gradio sends a handler's last answer once more when it is over, which may be after that of the recording.
    assert seen[-2] == Change() and list(merge_updates(iter([{"stage": "live"}, {}]))) == [{"stage": "live"}, {}]


def test_a_run_of_another_modality_or_an_unknown_method_leaves_the_controls(tmp_path: Path) -> None:
    shared = app(tmp_path)
    with gr.Blocks():
        tab = TextTab(shared)
    run = shared.archive.trace("stand").run
    assert tab.updates(Change(settings_run=run), [])[tab.prompt] == run.prompt
    for method in ("lantern", "telepathy"):
        assert tab.updates(Change(settings_run=replace(run, method=method)), []) == {}
