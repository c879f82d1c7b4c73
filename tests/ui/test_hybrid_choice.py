"""The hybrid target as a choice on the Text tab: a method that runs on it streams, one that cannot says why on the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specviz.models.text import load
from specviz.ui.app_state import AppState, make
from specviz.ui.settings import Settings
from specviz.ui.stream.engine import local
from specviz.ui.stream.presence import Caller
from specviz.ui.tabs import request_form, text_run
from specviz.ui.tabs.text_run import Change
from specviz.ui.widgets.panels import banner
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


def run(shared: AppState, method: str) -> list[Change]:
    basics = changed(request_form.forms(shared.settings)[0], temperature="0", max_new_tokens="8")
    given = asked(shared, method, "Why is the sky?", target=TARGET, basics=basics)
    return list(text_run.running(shared, Caller("a"), "token_recycling", lambda: request_form.request(given, shared.settings)))


def test_a_method_that_runs_on_it_streams(shared: AppState) -> None:
    changes = run(shared, "stree")
    assert not any(change.banner for change in changes)
    traces = [change.trace for change in changes if change.trace is not None]
    assert traces[-1].run.target == TARGET and traces[-1].end is not None and traces[-1].end.baseline is not None


@pytest.mark.parametrize("method", ["eagle3", "diffuspec", "medusa"])
def test_a_method_that_cannot_run_on_it_says_why_and_the_earlier_run_stays(shared: AppState, method: str) -> None:
    changes = run(shared, method)
    (told,) = [change for change in changes if change.banner]
    assert told.banner is not None and TARGET in told.banner and "choose" in told.banner.lower(), told.banner
    assert 'role="alert"' in banner(told.banner)
    assert told.feed == shared.archive.feed("token_recycling") and all(change.run_name is None for change in changes)
    assert changes[-1].running is False
