"""What clicking does on the Text tab: nothing that was there is lost when something goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from msgspec.structs import replace

from specviz.trace.schema import Trace
from specviz.ui.access import Caller
from specviz.ui.app_state import AppState
from specviz.ui.archive import MINE
from specviz.ui.tabs import events
from specviz.ui.tabs.events import Updates, merge_updates
from specviz.ui.tabs.run_tab import TextTab
from tests.support.fakes.ui import FakeEngine, Refused, app, asked
from tests.support.traces.samples import lines


def made(shared: AppState) -> TextTab:
    with gr.Blocks():
        return TextTab(shared)


@pytest.fixture
def tab(tmp_path: Path) -> TextTab:
    return made(app(tmp_path))


def live(tab: TextTab, shown: str = "token_recycling", runs: Any = None, **changes: str) -> Iterator[Updates]:
    wanted = asked(tab.shared, **changes)
    values = [getattr(wanted, name) for name in tab.controls]
    return tab.running(Caller("a"), shown, [] if runs is None else runs, *values)


def banners(tab: TextTab, updates: list[Updates]) -> list[str]:
    return [one[tab.banner].value for one in updates if tab.banner in one and one[tab.banner].value]


def is_running(tab: TextTab, updates: Updates) -> bool:
    return bool(updates[tab.run].value == tab.verb[1])


def test_a_recorded_run_plays_and_sets_the_controls(tab: TextTab) -> None:
    updates = tab.show("stand", [], "a")
    assert '"mode":"recorded"' in updates[tab.stage] and updates[tab.run_name] == "stand" == updates[tab.method]


def test_a_name_that_is_no_recording_is_told_and_nothing_changes(tab: TextTab) -> None:
    updates = tab.show("../../etc/passwd", [], "a")
    assert list(updates) == [tab.banner] and "There is no recorded run" in updates[tab.banner].value


def test_a_live_run_streams_is_kept_and_explained(tab: TextTab) -> None:
    runs: list[tuple[str, str]] = []
    updates = list(live(tab, runs=runs))
    assert is_running(tab, updates[0]) and not is_running(tab, updates[-1])
    ((_, name),) = runs
    assert name.startswith(MINE) and {one[tab.run_name] for one in updates if tab.run_name in one} == {name}
    trace = tab.shared.archive.trace(name)
    assert trace.end.baseline is not None
    assert [one[tab.why] for one in updates if tab.why in one][-1] == tab.explained(trace)[tab.why]


def test_bad_input_leaves_the_stage_alone(tab: TextTab) -> None:
    updates = list(live(tab, prompt=""))
    assert "The prompt is empty" in banners(tab, updates)[0] and not is_running(tab, updates[-1])
    assert all(tab.stage not in one and tab.run_name not in one for one in updates)


def test_a_model_that_cannot_be_had_gives_the_earlier_run_back(tmp_path: Path) -> None:
    tab = made(app(tmp_path, FakeEngine(breaks=Refused("The model cannot be fetched; check the network."))))
    updates = list(live(tab))
    title = tab.shared.archive.gallery.get("token_recycling").title
    assert f"The model cannot be fetched; check the network. The stage still shows “{title}”." in banners(tab, updates)[-1]
    assert [one[tab.stage] for one in updates if tab.stage in one][-1] == tab.shared.archive.feed("token_recycling")
    assert all(tab.run_name not in one for one in updates)


def test_a_run_stopped_before_its_first_step_leaves_the_explanation_of_the_one_that_stays(tmp_path: Path) -> None:
    tab = made(app(tmp_path, FakeEngine(pace=60.0, reading=("Reading the prompt: 5 of 9 tokens", 0.5))))
    updates = []
    for one in live(tab):
        updates.append(one)
        if "Reading the prompt" in one.get(tab.stage, ""):
            events.stop(tab.shared, "a")
    earlier = tab.explained(tab.shared.archive.trace("token_recycling"))
    assert [one[tab.why] for one in updates if tab.why in one] == [earlier[tab.why]] and not is_running(tab, updates[-1])


def test_a_recording_chosen_during_a_run_is_not_overwritten_by_it(tmp_path: Path) -> None:
    tab, seen, begun = made(app(tmp_path, FakeEngine(steps=300, pace=0.02))), [], threading.Event()

    def page() -> None:
        for updates in live(tab):
            seen.append(updates)
            if tab.run_name in updates:
                begun.set()

    running = threading.Thread(target=page)
    running.start()
    assert begun.wait(20)
    seen.append(tab.show("stand", [], "a"))
    chosen = len(seen)
    running.join(20)
    assert not running.is_alive()
    assert not any(tab.stage in updates for updates in seen[chosen:])
    assert seen[chosen - 1][tab.run_name] == "stand"
    # Gradio sends a handler's last answer once more when it is over, which may be after that of the recording.
    assert seen[-2] == {} and list(merge_updates(iter([{"stage": "live"}, {}]))) == [{"stage": "live"}, {}]


def test_a_run_of_another_modality_or_an_unknown_method_leaves_the_controls(tab: TextTab) -> None:
    trace = tab.shared.archive.trace("stand")

    def shown(method: str) -> Updates:
        changed: Trace = replace(trace, run=replace(trace.run, method=method))
        return tab.show(MINE + tab.shared.archive.store.new(lines(changed), checked=True), [], "a")

    assert shown("stand")[tab.prompt] == trace.run.prompt
    for method in ("lantern", "telepathy"):
        updates = shown(method)
        assert tab.stage in updates and tab.prompt not in updates and tab.method not in updates
