"""Inspecting a drafter on the page: it waits its turn, has an end, and opens no door to foreign models."""

import threading

import gradio as gr
import pytest

from specviz.errors import ModelUnavailable, SpecvizError
from specviz.pipeline.request import Request
from specviz.ui.access import Caller, PageSession
from specviz.ui.tabs import traces_tab
from tests.support.fakes.inspection import report
from tests.support.fakes.ui import FakeEngine, app


def outcome(shared, drafter="eagle3", target="", session="me"):
    """What the page is told, and the report."""
    steps = list(traces_tab.inspecting(shared, Caller(session), drafter, target or shared.settings.target))
    sentences = [step for step in steps if isinstance(step, str)]
    return sentences, next((step for step in steps if not isinstance(step, str)), None)


def test_the_advice_comes_first_then_every_reading_and_the_figures(tmp_path, monkeypatch):
    def inspected(drafter, target, tell):
        tell("Reading it")
        return report(drafter, target)

    monkeypatch.setattr(traces_tab, "inspected", inspected)
    sentences, found = outcome(app(tmp_path))
    assert sentences == ["Reading it"]
    with gr.Blocks():
        section = traces_tab.Inspection(app(tmp_path))
    html = next(one[section.report] for one in section.running(iter([found]), "light") if section.report in one)
    assert html.index("Acceptance is 0.50 as loaded, 1.00 with taps one &lt;b&gt;earlier") < html.index("<pre>")
    assert "1.00  0.75   +1.50 ± 0.25  better" in html and "plain residual" in html and "<b>earlier" not in html


def test_it_never_runs_beside_a_live_run(tmp_path, monkeypatch):
    engine, beside = FakeEngine(steps=10, pace=0.05), []
    shared = app(tmp_path, engine)
    monkeypatch.setattr(traces_tab, "inspected", lambda *_: (beside.append(engine.running), report())[1])
    frames = shared.live.run(PageSession(), Request(method="stand", prompt="Say something."))
    first = next(frames)
    others = threading.Thread(target=lambda: list(frames))
    others.start()
    _, found = outcome(shared)
    others.join()
    assert first and found and beside == [0] and engine.begun == 1


def test_where_only_the_list_runs_no_other_name_reaches_the_engine(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(traces_tab, "inspected", lambda *given: asked.append(given[0]) or report())
    closed, opened = app(tmp_path / "a", any_model=False), app(tmp_path / "b", any_model=True)
    for drafter, target in (("someone/head", ""), ("/etc", ""), ("eagle3", "someone/model"), ("", "")):
        with pytest.raises(SpecvizError, match="Choose an included drafter|only the models on its list"):
            outcome(closed, drafter, target)
    assert asked == []
    assert outcome(closed)[1] and outcome(opened, "someone/head")[1] and asked == ["eagle3", "someone/head"]


def test_a_time_limit_ends_it_and_the_next_one_begins(tmp_path, monkeypatch):
    def endless(drafter, target, tell):
        while True:
            tell("Reading it")
            threading.Event().wait(0.02)

    shared = app(tmp_path, max_seconds=1)
    monkeypatch.setattr(traces_tab, "inspected", endless)
    with pytest.raises(SpecvizError, match="A run may take 1 s here"):
        outcome(shared)
    monkeypatch.setattr(traces_tab, "inspected", lambda *_: report())
    assert outcome(shared, session="another")[1]


def test_what_cannot_be_read_is_said_in_its_own_words(tmp_path, monkeypatch):
    def refused(*_):
        raise ModelUnavailable("fc.weight is missing.")

    monkeypatch.setattr(traces_tab, "inspected", refused)
    with pytest.raises(SpecvizError, match=r"^fc\.weight is missing\.$"):
        outcome(app(tmp_path))
