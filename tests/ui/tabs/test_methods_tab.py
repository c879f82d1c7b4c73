"""All methods on one clock: what a lane says, and a live race that is bounded and can be stopped."""

import asyncio
import json
from types import SimpleNamespace

import gradio as gr
import pytest

from specviz.methods.registry import all_methods
from specviz.trace import metrics
from specviz.ui.access import Caller
from specviz.ui.archive import ONE_CLOCK, Gallery
from specviz.ui.deep_links import RunTabs
from specviz.ui.settings import Settings
from specviz.ui.tabs import methods_tab
from specviz.ui.tabs.methods_tab import MethodsTab, lane
from specviz.ui.tabs.run_tab import TextTab
from tests.support.fakes.ui import VISITOR, FakeEngine, Refused, app, recorded

ASKED = ["prompt_lookup", "token_recycling", "stand"]


def tab(shared):
    with gr.Blocks(), gr.Tabs() as tabs, gr.Tab("Methods") as opened:
        text = TextTab(shared)
        return MethodsTab(shared, opened, text, RunTabs(shared, tabs, {"text": text}), "trigger('submit'), trigger('stop')")


def race(shared, runs, methods=None, prompt="Hello"):
    for value, kept in tab(shared).race(Caller("a"), prompt, ASKED if methods is None else methods, runs):
        assert kept is runs
        yield json.loads(value)


def test_a_lane_has_the_clock_and_the_words_of_its_run():
    trace = recorded("token_recycling", 12)
    found, judged = lane("one", trace), metrics.compared_speed(trace)
    assert judged and found["speedup"] == judged.speedup and found["tau"] == metrics.tau(trace.steps)
    assert sum(ns for ns, _, _ in found["steps"]) == sum(step.time.total for step in trace.steps)
    assert "".join("".join(pieces) for _, _, pieces in found["steps"]) == "".join("".join(one.pieces) for one in trace.steps)
    assert (found["promise"], found["parting"]) == (metrics.promise(trace), metrics.parting(trace))
    assert len(found["plain"]) == len(trace.baseline.token_ns)


def test_methods_run_one_after_the_other_on_one_prompt_and_join_the_session(tmp_path):
    engine, runs = FakeEngine(), []
    states = list(race(app(tmp_path, engine), runs))
    assert [one.method for one in engine.asked] == ASKED and engine.most_running == 1
    assert {(one.prompt, one.temperature, one.max_new_tokens, one.baseline) for one in engine.asked} == {("Hello", 0, 64, True)}
    assert [one["running"] for one in states][0] == "prompt_lookup" and states[0]["place"] == "1 of 3"
    last = states[-1]
    assert [one["method"] for one in last["lanes"]] == ASKED and not last["running"] and not last["note"]
    assert [one["name"] for one in last["lanes"]] == [name for _, name in runs], "each can be opened on the stage"
    assert max(len(one["lanes"]) for one in states[:-1]) >= 2, "a lane is shown as soon as its run is over"


def test_a_race_is_bounded_in_methods_and_time(tmp_path, monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr(methods_tab, "MOST_METHODS", 2)
    assert len(list(race(app(tmp_path, engine), []))[-1]["lanes"]) == engine.begun == 2
    monkeypatch.setattr(methods_tab, "MOST_SECONDS", -1.0)
    last = list(race(app(tmp_path, engine), []))[-1]
    assert engine.begun == 2 and "2 methods did not start" in last["note"]


def test_a_race_that_is_stopped_keeps_the_lanes_so_far(tmp_path):
    engine, runs = FakeEngine(pace=0.01), []
    shared = app(tmp_path, engine)
    states = race(shared, runs)
    for state in states:
        if state["running"] == "token_recycling":
            page = shared.pages.find("a")
            page.turn_away()
    assert [one["method"] for one in state["lanes"]] == ["prompt_lookup"] and not state["running"]
    assert "stand" not in [one.method for one in engine.asked]


@pytest.mark.parametrize(
    ("methods", "prompt", "said"),
    [(["nothing"], "Hello", "no method"), (ASKED, " ", "prompt is empty"), (ASKED, "x" * 30_000, "maximum")],
)
def test_what_cannot_run_is_refused_in_a_sentence(tmp_path, methods, prompt, said):
    engine = FakeEngine()
    (state,) = race(app(tmp_path, engine), [], methods, prompt)
    assert said in state["note"] and not state["lanes"] and not engine.begun


def test_a_method_that_fails_leaves_the_others_racing(tmp_path):
    engine = FakeEngine(breaks=Refused("No heads for this target."))
    last = list(race(app(tmp_path, engine), []))[-1]
    assert engine.begun == 3 and last["note"] == "No heads for this target." and not last["lanes"]


def test_every_method_is_on_the_map_with_its_paper_and_a_run(tmp_path):
    shared = app(tmp_path, FakeEngine())
    listed = {one["name"]: one for one in methods_tab.papers(shared.archive.gallery)}
    assert listed.keys() == all_methods().keys()
    for name, method in all_methods().items():
        paper = listed[name]["paper"]
        assert paper == (method.paper and vars(method.paper)) and listed[name]["family"]
        assert listed[name]["url"] == (f"https://arxiv.org/abs/{method.paper.arxiv}" if paper and paper["arxiv"] else "")
    assert listed["stand"]["run"] == "stand" and listed["eagle3"]["run"] is None
    first, filled = asyncio.run(tab(shared).opened(False, VISITOR))
    assert filled and len(json.loads(first)["papers"]) == len(listed) and json.loads(first)["linked"] == []
    assert asyncio.run(tab(shared).opened(True, VISITOR))[0] == gr.skip()


def test_a_link_shows_the_lanes_of_a_shared_race_and_no_run_that_is_not_shared(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    shared = app(tmp_path, FakeEngine())
    lanes = list(race(shared, [], ASKED[:2]))[-1]["lanes"]
    names = [one["name"] for one in lanes]
    for name in names:
        asyncio.run(shared.archive.share(name, "sender"))

    def opened(*given):
        visitor = SimpleNamespace(**{**vars(VISITOR), "query_params": {"methods": ",".join(given)}})
        return json.loads(asyncio.run(tab(shared).opened(False, visitor))[0])

    later = app(tmp_path, FakeEngine())
    assert names[0].removeprefix("mine:") not in later.archive.store
    shared = later
    found = opened(*names)
    assert found["linked"] == lanes and found["linked"][0]["prompt"] == "Hello" and not found["note"]
    assert [opened(word)["linked"] for word in ("", "papers", "stand")] == [[], [], []]
    refused = opened(names[0], "mine:" + "a" * 24)
    assert refused["linked"] == [] and "no longer kept here" in refused["note"] and refused["papers"]


@pytest.mark.slow
def test_the_shipped_lanes_share_all_but_the_method_and_leave_out_none():
    """Every text method that runs on the included target is there, so that nobody keeps a list."""
    gallery = Gallery(Settings().traces)
    settings = {
        (one.run.prompt, one.run.target, one.run.sampling, one.run.max_new_tokens, one.run.device) for one in gallery.race
    }
    assert len(settings) == 1
    (_, target, sampling, _, _), *_ = settings
    assert sampling.temperature == 0
    plain = [one.end.metrics["baseline_tokens_per_second"] for one in gallery.race if one.end]
    assert max(plain) < 1.2 * min(plain), "one clock for all: the machine was as fast for each of them"
    fitting = {
        name for name, one in all_methods().items()
        if "text" in one.modality and (not one.targets or target in one.targets)
    } - {"autoregressive"}  # fmt: skip
    assert {one.run.method for one in gallery.race} == fitting and len(gallery.race) == len(fitting)
    assert len(gallery.by_family("text")[ONE_CLOCK]) == len(fitting)
    assert all(gallery.of_method(name) not in gallery.race or name.startswith("bandit") for name in fitting)
