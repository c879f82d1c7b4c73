"""What clicking does on a run's tab: nothing that was there is lost when something goes wrong.

Choosing a method shows its recorded run and brings its own settings; what the visitor changed by hand stays.
"""

import asyncio
import json
import threading

import gradio as gr
import pytest
from msgspec.structs import replace

from specviz.trace import store
from specviz.ui.access import Caller
from specviz.ui.app_state import make
from specviz.ui.archive import MINE
from specviz.ui.settings import Settings
from specviz.ui.tabs import events
from specviz.ui.tabs.request_form import Basics
from specviz.ui.tabs.run_tab import ImageTab, TextTab, VisionTab
from tests.support.fakes.ui import VISITOR, FakeEngine, Refused, app, asked, banners, changed, gallery, recorded
from tests.support.traces.samples import lines


def made(shared):
    with gr.Blocks():
        return TextTab(shared)


@pytest.fixture
def tab(tmp_path):
    return made(app(tmp_path))


def live(tab, shown="token_recycling", runs=None, **changes):
    wanted = asked(tab.shared, **changes)
    values = [getattr(wanted, name) for name in tab.controls]
    return tab.running(Caller("a"), shown, [] if runs is None else runs, *values)


def is_running(tab, updates):
    return bool(updates[tab.run].value == tab.verb[1])


def test_a_recorded_run_plays_and_sets_the_controls(tab):
    updates = tab.show("stand", [], "a")
    assert '"mode":"recorded"' in updates[tab.stage] and updates[tab.run_name] == "stand" == updates[tab.method]


def test_a_live_run_streams_is_kept_and_explained(tab):
    runs = []
    updates = list(live(tab, runs=runs))
    assert is_running(tab, updates[0]) and not is_running(tab, updates[-1])
    ((_, name),) = runs
    assert name.startswith(MINE) and {one[tab.run_name] for one in updates if tab.run_name in one} == {name}
    trace = tab.shared.archive.trace(name)
    assert trace.end.baseline is not None
    assert [one[tab.explanation] for one in updates if tab.explanation in one][-1] == tab.explained(trace)[tab.explanation]


def test_bad_input_leaves_the_stage_alone(tab):
    updates = list(live(tab, prompt=""))
    assert "The prompt is empty" in banners(tab, updates)[0] and not is_running(tab, updates[-1])
    assert all(tab.stage not in one and tab.run_name not in one for one in updates)


def test_a_model_that_cannot_be_had_gives_the_earlier_run_back(tmp_path):
    tab = made(app(tmp_path, FakeEngine(breaks=Refused("The model cannot be fetched; check the network."))))
    updates = list(live(tab))
    title = tab.shared.archive.gallery.get("token_recycling").title
    assert f"The model cannot be fetched; check the network. The stage still shows “{title}”." in banners(tab, updates)[-1]
    assert [one[tab.stage] for one in updates if tab.stage in one][-1] == tab.shared.archive.feed("token_recycling")
    assert all(tab.run_name not in one for one in updates)


def test_a_run_stopped_before_its_first_step_leaves_the_explanation_of_the_one_that_stays(tmp_path):
    tab = made(app(tmp_path, FakeEngine(pace=60.0, reading=("Reading the prompt: 5 of 9 tokens", 0.5))))
    updates = []
    for one in live(tab):
        updates.append(one)
        if "Reading the prompt" in one.get(tab.stage, ""):
            events.stop(tab.shared, "a")
    assert not any(tab.explanation in one for one in updates) and not is_running(tab, updates[-1])


@pytest.mark.parametrize("other", [False, True], ids=["shown in its tab", "shown in another tab"])
def test_a_run_is_left_for_a_recording(tmp_path, other):
    tab, seen, begun = made(app(tmp_path, FakeEngine(steps=300, pace=0.02))), [], threading.Event()

    def page():
        for updates in live(tab):
            seen.append(updates)
            if tab.run_name in updates:
                begun.set()

    running = threading.Thread(target=page)
    running.start()
    assert begun.wait(20)
    if other:
        with gr.Blocks(), gr.Tab() as tab_page:
            ImageTab(tab.shared, tab_page).show("stand", [], "a")
        running.join(20)
        assert not is_running(tab, seen[-1]) and "began something else" in banners(tab, seen)[-1]
        assert MINE in seen[-1][tab.run_name] and "timing" not in seen[-1][tab.explanation]
        return
    shown = tab.show("stand", [], "a")
    running.join(20)
    assert not running.is_alive() and shown[tab.run_name] == "stand"
    # Gradio sends a handler's last answer once more when it is over, which may be after that of the recording.
    assert seen[-1] == {} and list(tab.merged(iter([{"stage": "live"}, {}]))) == [{"stage": "live"}, {tab.banner: gr.skip()}]


def test_a_run_of_another_modality_or_an_unknown_method_leaves_the_controls(tab):
    trace = tab.shared.archive.trace("stand")

    def shown(method):
        changed = replace(trace, run=replace(trace.run, method=method))
        return tab.show(MINE + tab.shared.archive.store.new(lines(changed), checked=True), [], "a")

    assert shown("stand")[tab.prompt] == trace.run.prompt
    for method in ("lantern", "telepathy"):
        updates = shown(method)
        assert tab.stage in updates and tab.prompt not in updates and tab.method not in updates


NAMES = ("stand", "eagle2", "token_recycling", "hivis", "dream", "lantern_pp")
HOW = {"stand": (0.6, 112), "eagle2": (0.0, 80), "token_recycling": (0.0, 80), "hivis": (0.0, 140)}


@pytest.fixture
def folder(tmp_path):
    """Recorded runs with a prompt, a temperature and a number of new tokens of their own."""
    found = gallery(tmp_path / "traces", NAMES)
    for name, (temperature, tokens) in HOW.items():
        trace = recorded(name, 6)
        sampling = replace(trace.run.sampling, temperature=temperature)
        run = replace(trace.run, prompt=f"Prompt of {name}.", sampling=sampling, max_new_tokens=tokens)
        store.write(replace(trace, run=run), found / f"{name}.spectrace.jsonl")
    return found


class Visitor:
    """A visitor of one tab without a browser: its form as it stands, and what the last choice changed."""

    def __init__(self, tab):
        self.tab, self.given, self.updates = tab, tab.given.value, {}
        self.prompt, self.basics, self.advanced = tab.prompt.value, tab.basics.value, tab.advanced.value

    def choose(self, method):
        values = (self.given, self.prompt, self.basics, self.advanced)
        self.updates = self.tab.choose_method(method, [], *values, VISITOR, self.tab.target.value, "")
        self.fill()

    def show(self, name):
        self.updates = self.tab.show(name, [(name, name)], VISITOR.session_hash)
        self.fill()

    def fill(self):
        tab = self.tab
        self.given = self.updates.get(tab.given, self.given)
        self.prompt = self.updates.get(tab.prompt, self.prompt)
        self.basics = self.updates.get(tab.basics, self.basics)
        self.advanced = self.updates.get(tab.advanced, self.advanced)

    def type(self, **values):
        self.basics = changed(self.basics, **values)

    @property
    def asked(self):
        values = json.loads(self.basics)["values"]
        return float(values["temperature"]), int(values["max_new_tokens"])

    @property
    def shown(self):
        return self.updates.get(self.tab.run_name)


@pytest.fixture
def enter(folder):
    shared = make(Settings(traces=folder), FakeEngine())

    def opened(name):
        with gr.Blocks(), gr.Tab() as tab_page:
            if name == "text":
                return Visitor(TextTab(shared))
            return Visitor({"vision": VisionTab, "image": ImageTab}[name](shared, tab_page))

    return opened


def test_the_stage_and_the_form_are_the_method_s_own(enter):
    visitor = enter("text")
    assert visitor.asked == HOW["stand"]
    visitor.choose("eagle2")
    assert visitor.shown == "eagle2" and "eagle2" in visitor.updates[visitor.tab.stage]
    assert visitor.asked == HOW["eagle2"] and visitor.prompt == "Prompt of eagle2."
    visitor.choose("stand")
    assert visitor.asked == HOW["stand"] and visitor.prompt == "Prompt of stand."


def test_what_was_changed_by_hand_stays_through_every_choice(enter):
    visitor = enter("text")
    visitor.prompt = "Why is the sky blue?"
    visitor.type(temperature="0")
    for method, tokens in (("eagle2", 80), ("stand", 112), ("bandit_ucb", 96)):
        visitor.choose(method)
        assert visitor.asked == (0.0, tokens) and visitor.prompt == "Why is the sky blue?", method
    visitor.type(max_new_tokens="33")
    visitor.advanced = changed(visitor.advanced, seed="7")
    visitor.choose("stand")
    assert visitor.shown == "stand" and visitor.asked == (0.0, 33)
    assert json.loads(visitor.advanced)["values"]["seed"] == "7"


def test_a_value_typed_back_to_what_was_given_is_nobody_s(enter):
    visitor = enter("text")
    visitor.type(temperature="0.60")
    visitor.choose("eagle2")
    assert visitor.asked == HOW["eagle2"]


def test_a_recording_chosen_by_name_brings_all_its_settings(enter):
    visitor = enter("text")
    visitor.type(temperature="1.5")
    visitor.show("eagle2")
    assert visitor.asked == HOW["eagle2"]
    visitor.choose("stand")
    assert visitor.asked == HOW["stand"]


def test_a_run_of_one_s_own_is_one_s_own_choice(enter):
    visitor = enter("text")
    trace = recorded("stand", 4)
    sampling = replace(trace.run.sampling, temperature=1.1)
    run = replace(trace.run, prompt="My own prompt.", sampling=sampling, max_new_tokens=Basics.max_new_tokens)
    visitor.show(MINE + visitor.tab.shared.archive.store.new(lines(replace(trace, run=run))))
    visitor.choose("eagle2")
    assert visitor.shown == "eagle2" and visitor.prompt == "My own prompt."
    assert visitor.asked == (1.1, HOW["eagle2"][1])  # a default is nobody's choice


def test_a_recording_chosen_by_name_brings_its_draft_model_and_a_method_leaves_it(enter):
    visitor, trace = enter("text"), recorded("stand", 4)
    run = replace(trace.run, method="speculative_sampling", parameters={}, draft="smollm2-135m-instruct")
    visitor.show(MINE + visitor.tab.shared.archive.store.new(lines(replace(trace, run=run))))
    assert visitor.updates[visitor.tab.draft].value == "smollm2-135m-instruct"
    run = replace(run, draft="small_draft")  # the included one, which the list does not name
    visitor.show(MINE + visitor.tab.shared.archive.store.new(lines(replace(trace, run=run))))
    assert visitor.updates[visitor.tab.draft].value == ""
    visitor.choose("eagle2")
    assert visitor.tab.draft not in visitor.updates


def test_a_method_without_a_recording_leaves_the_stage_and_says_so(enter):
    visitor = enter("text")
    visitor.choose("bandit_ucb")
    touched = {visitor.tab.stage, visitor.tab.run_name, visitor.tab.recording, visitor.tab.explanation} & visitor.updates.keys()
    assert not touched and visitor.asked == (0.0, 96) and visitor.prompt == "Prompt of stand."
    assert "No run of this method is recorded" in visitor.updates[visitor.tab.summary]
    visitor.choose("eagle2")
    assert "No run of this method is recorded" not in visitor.updates[visitor.tab.summary]


def test_a_run_that_is_going_on_keeps_the_stage(enter):
    visitor = enter("text")
    cancel = visitor.tab.shared.pages.enter(Caller("a")).begin()
    visitor.choose("eagle2")
    assert visitor.shown is None and visitor.tab.stage not in visitor.updates and not cancel.is_set()
    assert visitor.asked == HOW["eagle2"] and json.loads(visitor.updates[visitor.tab.own])["of"] == "eagle2"


def test_a_method_of_several_kinds_shows_only_a_run_of_the_tab_s_kind(enter):
    visitor = enter("vision")
    visitor.choose("eagle2")
    assert visitor.shown is None and "No run of this method is recorded" in visitor.updates[visitor.tab.summary]
    visitor.choose("hivis")
    assert visitor.shown == "hivis" and visitor.asked == HOW["hivis"]
    pictures = enter("image")
    pictures.choose("lantern_pp")
    assert pictures.shown == "lantern_pp"


def test_a_method_s_recorded_run_of_another_target_leaves_the_guidance_to_the_target(enter):
    visitor = enter("image")
    tab, values = visitor.tab, (visitor.given, visitor.prompt, visitor.basics, visitor.advanced)
    for target, guidance in (("emoji-64", 2.0), ("sprites-32", 0.0)):
        updates = tab.choose_method("lantern_pp", [], *values, VISITOR, target, "")
        assert json.loads(updates[tab.basics])["values"]["guidance"] == guidance


def test_a_form_that_is_no_form_is_refused_in_words(enter):
    visitor = enter("text")
    visitor.basics = "{"
    visitor.choose("eagle2")
    assert "Reload the page" in visitor.updates[visitor.tab.banner].value and visitor.shown is None


def test_a_run_of_this_session_stands_under_its_own_heading(enter):
    visitor = enter("text")
    name = f"mine:{visitor.tab.shared.archive.store.new(lines(recorded('stand', 4)))}"
    updates = visitor.tab.show(name, [("A run of mine", name)], VISITOR.session_hash)
    listed = json.loads(updates[visitor.tab.recording])
    assert listed["name"] == name and listed["groups"][0] == ["This session", [["A run of mine", name]]]
    shown = asyncio.run(visitor.tab.play_chosen("eagle2", [], VISITOR))
    assert shown[visitor.tab.run_name] == "eagle2"
    for damaged, said in ((None, "no run to show"), ("", "no run to show"), ({"a": 3}, "no recorded run")):
        assert said in asyncio.run(visitor.tab.play_chosen(damaged, [], VISITOR))[visitor.tab.banner].value


def test_a_method_brings_a_target_that_it_runs_on_and_leaves_as_it_came(enter):
    visitor = enter("text")
    tab, values = visitor.tab, (visitor.given, visitor.prompt, visitor.basics, visitor.advanced)

    def choose(method, target, before):
        updates = tab.choose_method(method, [], *values, VISITOR, target, before)
        return updates.get(tab.target, target), updates.get(tab.target_before, before)

    usual, other = tab.shared.settings.target, "smollm2-360m-instruct"
    assert choose("stree", other, "") == ("hybrid-small", other)
    assert choose("eagle2", "hybrid-small", other) == (other, "")
    assert choose("eagle2", other, "") == (other, ""), "what the visitor chose stays"
    assert choose("stree", "bamba-9b", "") == ("bamba-9b", ""), "it runs on that one"
    assert choose("eagle2", "hybrid-small", "") == ("hybrid-small", ""), "chosen by hand"
    aimed = tab.on_target("hybrid-small")
    assert choose("eagle2", aimed[tab.target], aimed[tab.target_before]) == (usual, ""), "from a recording"
