"""A page that takes another's place gets its forms and its run back, and nothing that somebody could have slipped in."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from specviz.trace import store
from specviz.trace.schema import Trace
from specviz.ui import kept
from specviz.ui.arrival import Rooms
from specviz.ui.shared import AppState
from specviz.ui.shown import MINE
from specviz.ui.tabs import text_tab
from specviz.ui.tabs.run_tab import Updates
from specviz.ui.widgets import controls
from tests.support.fakes.ui import app, asked, changed
from tests.support.traces.samples import lines, sample_trace

VISITOR: Any = SimpleNamespace(session_hash="a", query_params={})
RUN = lines(sample_trace(9, method="prompt_lookup"))
WHOLE, CUT = "\n".join(RUN), "\n".join(RUN[:5])


@pytest.fixture
def shared(tmp_path: Path) -> AppState:
    return app(tmp_path)


@pytest.fixture
def tab(shared: AppState) -> text_tab.TextTab:
    with gr.Blocks():
        return text_tab.build(shared, gr.State(""), gr.State([]))


def arrived(tab: text_tab.TextTab, handed: object) -> Updates:
    """What the page opens with when its browser hands this over."""
    text = handed if isinstance(handed, str) else json.dumps(handed)
    return Rooms(tab.shared, gr.Tabs(), {"text": tab}).arrive(text, VISITOR, [])


def form(shared: AppState, **changes: str) -> list[str]:
    state = asked(shared, method="prompt_lookup", prompt="My own prompt.", **changes)
    return [str(getattr(state, name)) for name in kept.NAMES]


def values(form_text: str) -> dict[str, Any]:
    return dict(json.loads(form_text)["values"])


def test_the_forms_come_back_as_they_stood(shared: AppState, tab: text_tab.TextTab) -> None:
    plain = asked(shared)
    own = changed(controls.method_answer("prompt_lookup"), copied=7)
    written = form(shared, basics=changed(plain.basics, max_new_tokens="33", unheard_of=1), own=own)
    updates = arrived(tab, {"sp": {"form": written, "lines": ""}})
    assert (updates[tab.method], updates[tab.prompt], updates[tab.target]) == ("prompt_lookup", "My own prompt.", plain.target)
    assert values(updates[tab.basics])["max_new_tokens"] == "33" and "unheard_of" not in values(updates[tab.basics])
    assert values(updates[tab.own]) == values(own)
    assert tab.stage not in updates and tab.given not in updates


@pytest.mark.parametrize(("text", "steps", "reason"), [(WHOLE, 9, "budget"), (CUT, 4, "cancelled")])
def test_the_run_comes_back_with_the_steps_that_it_had(tab: text_tab.TextTab, text: str, steps: int, reason: str) -> None:
    updates = arrived(tab, {"sp": {"form": None, "lines": text}})
    name = updates[tab.run_name]
    assert name.startswith(MINE) and updates[tab.runs][0][1] == name
    trace = tab.shared.archive.trace(name)
    assert len(trace.steps) == steps and trace.end is not None and trace.end.reason == reason
    assert ("loaded anew" in trace.end.message) == (reason == "cancelled")
    assert updates[tab.prompt] == trace.run.prompt and updates[tab.method] == "prompt_lookup"
    assert store.read(store.text(Trace(trace.run, trace.steps, trace.end)).encode()) == trace


@pytest.mark.parametrize("handed", [
    "", "no JSON", "[]", "3", "null", '{"sp": 3}', '{"sp": []}', '{"elsewhere": {"lines": "x"}}', "[" * 100_000,
    '{"sp": {"form": ["stand"], "lines": 3}}', '{"sp": {"form": 5}}', '"' + "x" * kept.MOST_LETTERS + '"',
])  # fmt: skip
def test_what_is_damaged_is_as_if_nothing_had_been_kept(tab: text_tab.TextTab, handed: str) -> None:
    assert arrived(tab, handed) == {tab.run_name: "token_recycling"}


@pytest.mark.parametrize("lines_text", ["{}", WHOLE.replace('"kind":"step"', '"kind":"stop"'), "\n".join(RUN[1:])])
def test_a_run_that_cannot_be_read_is_said_and_the_form_is_kept(shared: AppState, tab: text_tab.TextTab, lines_text: str) -> None:
    updates = arrived(tab, {"sp": {"form": form(shared), "lines": lines_text}})
    assert "could not be read again" in updates[tab.banner].value and updates[tab.prompt] == "My own prompt."
    assert tab.stage not in updates


@pytest.mark.parametrize("name", ["method", "basics", "advanced", "own"])
def test_a_form_that_no_page_sends_changes_nothing(shared: AppState, tab: text_tab.TextTab, name: str) -> None:
    written = form(shared)
    written[kept.NAMES.index(name)] = "{}"
    assert arrived(tab, {"sp": {"form": written}}) == {tab.run_name: "token_recycling"}


def test_a_target_that_is_not_offered_here_stays_out(tmp_path: Path) -> None:
    shared = app(tmp_path, any_model=False)
    with gr.Blocks():
        tab = text_tab.build(shared, gr.State(""), gr.State([]))
    written = form(shared)
    written[kept.NAMES.index("target")] = "/etc"
    updates = arrived(tab, {"sp": {"form": written}})
    assert tab.target not in updates and updates[tab.prompt] == "My own prompt."
