"""A page that takes another's place gets its forms and its run back, and nothing that somebody could have slipped in."""

import asyncio
import io
import json

import gradio as gr
import pytest
from PIL import Image

from specviz.trace import store
from specviz.trace.schema import Trace
from specviz.ui import browser_state
from specviz.ui.archive import MINE
from specviz.ui.deep_links import RunTabs
from specviz.ui.tabs import request_form
from specviz.ui.tabs.run_tab import TextTab, VisionTab
from specviz.ui.widgets import examples
from tests.support.fakes.ui import VISITOR, app, asked, changed
from tests.support.traces.samples import lines, sample_trace

RUN = lines(sample_trace(9, method="prompt_lookup"))
WHOLE, CUT = "\n".join(RUN), "\n".join(RUN[:5])


@pytest.fixture
def shared(tmp_path):
    return app(tmp_path)


@pytest.fixture
def tab(shared):
    with gr.Blocks():
        return TextTab(shared)


def arrived(tab, handed):
    """What the page opens with when its browser hands this over."""
    text = handed if isinstance(handed, str) else json.dumps(handed)
    return asyncio.run(RunTabs(tab.shared, gr.Tabs(), {"text": tab}).arrive(text, VISITOR, []))


def form(shared, **changes):
    state = asked(shared, method="prompt_lookup", prompt="My own prompt.", **changes)
    return [str(getattr(state, name)) for name in TextTab.kept]


def values(form_text):
    return dict(json.loads(form_text)["values"])


def test_the_forms_come_back_as_they_stood(shared, tab):
    plain = asked(shared)
    own = changed(request_form.method_answer("prompt_lookup"), copied=7)
    written = form(shared, basics=changed(plain.basics, max_new_tokens="33", unheard_of=1), own=own)
    updates = arrived(tab, {"sp": {"form": written, "lines": ""}})
    assert (updates[tab.method], updates[tab.prompt], updates[tab.target]) == ("prompt_lookup", "My own prompt.", plain.target)
    assert values(updates[tab.basics])["max_new_tokens"] == "33" and "unheard_of" not in values(updates[tab.basics])
    assert values(updates[tab.own]) == values(own)
    assert tab.stage not in updates and tab.given not in updates


@pytest.mark.parametrize(("text", "steps", "reason"), [(WHOLE, 9, "budget"), (CUT, 4, "cancelled")])
def test_the_run_comes_back_with_the_steps_that_it_had(tab, text, steps, reason):
    updates = arrived(tab, {"sp": {"form": None, "lines": text}})
    name = updates[tab.run_name]
    assert name.startswith(MINE) and updates[tab.runs][0][1] == name
    trace = tab.shared.archive.trace(name)
    assert len(trace.steps) == steps and trace.end.reason == reason
    assert ("was reloaded" in trace.end.message) == (reason == "cancelled")
    assert updates[tab.prompt] == trace.run.prompt and updates[tab.method] == "prompt_lookup"
    assert store.read(store.text(Trace(trace.run, trace.steps, trace.end)).encode()) == trace


@pytest.mark.spread(1)
@pytest.mark.parametrize("handed", [
    "", "no JSON", "[]", "3", "null", '{"sp": 3}', '{"sp": []}', '{"elsewhere": {"lines": "x"}}', "[" * 100_000,
    '{"sp": {"form": ["stand"], "lines": 3}}', '{"sp": {"form": 5}}', '"' + "x" * browser_state.MOST_LETTERS + '"',
])  # fmt: skip
def test_what_is_damaged_is_as_if_nothing_had_been_kept(tab, handed):
    assert arrived(tab, handed) == {tab.run_name: "token_recycling"}


@pytest.mark.spread(1)
@pytest.mark.parametrize("lines_text", ["{}", WHOLE.replace('"kind":"step"', '"kind":"stop"'), "\n".join(RUN[1:])])
def test_a_run_that_cannot_be_read_is_said_and_the_form_is_kept(shared, tab, lines_text):
    updates = arrived(tab, {"sp": {"form": form(shared), "lines": lines_text}})
    assert "could not be restored" in updates[tab.banner].value and updates[tab.prompt] == "My own prompt."
    assert tab.stage not in updates


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["method", "basics", "advanced", "own"])
def test_a_form_that_no_page_sends_changes_nothing(shared, tab, name):
    written = form(shared)
    written[browser_state.NAMES.index(name)] = "{}"
    assert arrived(tab, {"sp": {"form": written}}) == {tab.run_name: "token_recycling"}


def test_the_draft_model_comes_back_with_the_method_that_needs_it(shared, tab):
    written = form(shared, draft="smollm2-360m-instruct")
    assert arrived(tab, {"sp": {"form": written}})[tab.draft].value == "", "a method that needs no draft model"
    written[TextTab.kept.index("method")] = "speculative_sampling"
    written[TextTab.kept.index("own")] = request_form.method_answer("speculative_sampling")
    draft = arrived(tab, {"sp": {"form": written}})[tab.draft]
    assert draft.value == "smollm2-360m-instruct" and draft.visible


def noise(side):
    out = io.BytesIO()
    Image.effect_noise((side, side), 90).convert("RGB").save(out, "PNG")
    return out.getvalue()


@pytest.mark.slow
def test_the_picture_comes_back_and_is_never_too_large_for_that(shared, tmp_path):
    with gr.Blocks(), gr.Tab() as opened:
        tab = VisionTab(shared, opened)
    (tmp_path / "photo.png").write_bytes(noise(1500))
    picture = tab.bring(str(tmp_path / "photo.png"))[tab.picture]
    assert len(picture) <= examples.MOST_KEPT
    settings = shared.settings
    forms = (request_form.forms(settings)[0], request_form.forms(settings)[1], request_form.method_answer("hivis"))
    written = ["hivis", "scenes-vlm", "What is it?", *forms, "", examples.preview(picture)]
    run_tabs = RunTabs(shared, gr.Tabs(), {"vision": tab})
    updates = asyncio.run(run_tabs.arrive(json.dumps({"sp-see": {"form": written}}), VISITOR, []))
    assert updates[tab.picture] == picture and updates[tab.by_hand] and updates[tab.preview] == written[-1]
    for damaged in ("<img src=x>", examples.preview(b"no picture"), examples.preview(noise(800))):
        written[-1] = damaged
        updates = asyncio.run(run_tabs.arrive(json.dumps({"sp-see": {"form": written}}), VISITOR, []))
        assert tab.picture not in updates and updates[tab.prompt] == "What is it?"


def test_a_target_that_is_not_offered_here_stays_out(tmp_path):
    shared = app(tmp_path, any_model=False)
    with gr.Blocks():
        tab = TextTab(shared)
    written = form(shared)
    written[browser_state.NAMES.index("target")] = "/etc"
    updates = arrived(tab, {"sp": {"form": written}})
    assert tab.target not in updates and updates[tab.prompt] == "My own prompt."
