"""The hybrid target as a choice on the Text tab: a method that runs on it streams, one that cannot says why on the page."""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr
import pytest

from specviz.models.text import load
from specviz.ui.app_state import AppState, make
from specviz.ui.settings import Settings
from specviz.ui.stream.engine import local
from specviz.ui.stream.presence import Caller
from specviz.ui.tabs.run_tab import Runs, TextTab, Updates
from tests.support.fakes.ui import asked, changed, gallery
from tests.support.tiny.shelf import fill, stock

TARGET = "hybrid-small"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppState]:
    """The app with the engine it runs with, and a tiny hybrid under the shipped one's name."""
    folder = fill(tmp_path_factory.mktemp("project"))
    with pytest.MonkeyPatch.context() as patch:
        stock(folder, patch)
        yield make(Settings(traces=gallery(folder / "traces")), local)
    load.MODELS.release()


def run(shared: AppState, method: str) -> tuple[TextTab, list[Updates], Runs]:
    with gr.Blocks():
        tab = TextTab(shared)
    basics = changed(tab.basics.value, temperature="0", max_new_tokens="8")
    given, runs = asked(shared, method, "Why is the sky?", target=TARGET, basics=basics), Runs()
    values = [getattr(given, name) for name in tab.controls]
    return tab, list(tab.running(Caller("a"), "token_recycling", runs, *values)), runs


def test_a_method_that_runs_on_it_streams(shared: AppState) -> None:
    tab, changes, ((_, name),) = run(shared, "stree")
    assert not any(updates[tab.banner].value for updates in changes if tab.banner in updates)
    trace = shared.archive.trace(name)
    assert trace.run.target == TARGET and trace.end is not None and trace.end.baseline is not None


@pytest.mark.parametrize("method", ["eagle3", "diffuspec", "medusa"])
def test_a_method_that_cannot_run_on_it_says_why_and_the_earlier_run_stays(shared: AppState, method: str) -> None:
    tab, changes, runs = run(shared, method)
    (told,) = [updates for updates in changes if tab.banner in updates and updates[tab.banner].value]
    said = told[tab.banner].value
    assert TARGET in said and "choose" in said.lower() and 'role="alert"' in said
    assert told[tab.stage] == shared.archive.feed("token_recycling") and not runs
    assert changes[-1][tab.run].value == tab.verb[0]
