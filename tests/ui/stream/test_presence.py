"""Strangers' requests: they end nobody's run, take nobody's state, and hold no place that they do not wait in."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx
import pytest

from specviz.bench.visitor import Form, Visitor
from specviz.trace import store
from specviz.ui import access
from specviz.ui.access import MOST_CLOSED, Caller, Presence, refresh
from specviz.ui.app_state import AppState
from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages.served import served


@dataclass
class Site:
    """A running app, and requests to it as programs send them."""

    shared: AppState
    engine: FakeEngine
    built: gr.Blocks
    url: str

    def event(self, name: str) -> int:
        """The number of the event whose handler has that name."""
        return next(key for key, one in self.built.fns.items() if one.name == name)

    def post(self, path: str, event: str, session: str, data: list[Any]) -> httpx.Response:
        body = {"fn_index": self.event(event), "session_hash": session, "data": data}
        return httpx.post(f"{self.url}gradio_api/{path}", json=body, timeout=60)

    def join(self, session: str, method: str = "stand") -> httpx.Response:
        """A run of the interface for programs."""
        return self.post("queue/join", "run", session, [method, "Hi.", 64, 0.0, 0, 1.0, 0, False, False, "", "", "{}"])

    def read(self, session: str) -> Iterator[dict[str, Any]]:
        """The events of a session."""
        where = f"{self.url}gradio_api/queue/data?session_hash={session}"
        with httpx.stream("GET", where, timeout=60) as answer:
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])

    def run(self, session: str) -> dict[str, Any]:
        """The last event of a whole run, read as a page would."""
        self.join(session)
        return next(one for one in self.read(session) if one["msg"] == "process_completed")


@pytest.fixture
def site(tmp_path: Any) -> Iterator[Site]:
    engine = FakeEngine(steps=6)
    shared = app(tmp_path, engine, max_waiting=6)
    built, url = served(shared)
    yield Site(shared, engine, built, url)
    built.close()


def whole(message: dict[str, Any]) -> int:
    """How many steps the trace has that a run ended with; it has to be one that ended by itself."""
    found = message["output"]["data"][0]
    trace = store.read(found if isinstance(found, bytes) else found.encode())
    assert trace.end.reason == "budget"
    return len(trace.steps)


@pytest.mark.slow
def test_any_number_of_strangers_stops_nobody_and_takes_no_state(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.shared.pages, "most", 8)
    holder = site.built.app.state_holder
    monkeypatch.setattr(holder, "capacity", 8)
    site.engine.steps, site.engine.pace = 600, 0.1
    site.join("victim")
    events, strangers = site.read("victim"), [secrets.token_hex(6) for _ in range(20)]
    next(one for one in events if one["msg"] == "process_starts")
    for _ in range(200):
        if site.engine.running:
            break
        threading.Event().wait(0.1)
    for one in strangers:
        assert site.post("run/predict", "halt", one, []).status_code == 200
    assert site.engine.cancelled == 0 and site.engine.running == 1
    assert len(site.shared.pages) == 1, "only a run opens a session"
    assert "victim" in holder and strangers[0] not in holder, "a stranger was forgotten instead"
    events.close()


DOORS: dict[str, dict[str, Any]] = {
    "component_server": {"data": [], "fn_name": "make_file", "component_id": 0, "session_hash": "new"},
    "run/predict": {"data": [], "fn_index": "halt", "session_hash": "new"},
    "run/halt": {"data": [], "fn_index": "halt", "session_hash": None},
    "queue/join": {"data": [], "fn_index": "methods", "session_hash": "new"},
    "call/methods": {"data": [], "session_hash": "new"},
    "call/v2/methods": {},
}


def test_a_request_of_an_unknown_session_asks_no_component_for_its_configuration(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """There are some two hundred, which takes as long as all the rest of such a request twelve times."""
    asked: list[str] = []

    def count(block: Any, *_: Any) -> dict[str, Any]:
        if site.built.blocks.get(block._id) is block:  # an event's own answers are few
            asked.append(type(block).__name__)
        return {}

    for kind in {type(block) for block in site.built.blocks.values()}:
        monkeypatch.setattr(kind, "get_config", count)
    for door, asking in DOORS.items():
        body = asking | ({"fn_index": site.event(asking["fn_index"])} if "fn_index" in asking else {})
        site.built.app.state_holder.session_data.clear()
        answer = httpx.post(f"{site.url}gradio_api/{door}", json=body, timeout=60)
        if event := answer.json().get("event_id") if door != "component_server" else None:
            where = f"call/methods/{event}" if "call" in door else "queue/data?session_hash=new"
            with httpx.stream("GET", f"{site.url}gradio_api/{where}", timeout=60) as events:
                assert "complete" in "".join(events.iter_text())
        if body.get("session_hash"):
            assert "new" in site.built.app.state_holder
        assert asked == [], door


def test_runs_that_nobody_reads_are_not_run_and_free_their_places(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "COMING_SECONDS", 1.0)
    monkeypatch.setattr(site.shared.pages, "each", 40)
    for number in range(7):
        assert site.join(f"phantom {number}").status_code == 200
    for _ in range(100):
        answer = site.run("victim")
        if answer["success"]:
            break
        assert "all there is room for" in answer["output"]["error"]
        threading.Event().wait(0.1)
    assert whole(site.run("victim")) == 6
    assert len(site.engine.asked) == 2, "the engine ran what somebody read and nothing else"


def test_one_address_cannot_take_every_place(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.shared.pages, "each", 2)
    site.engine.pace = 10.0
    readers = []
    for name in ("one", "two"):
        site.join(name)
        readers.append(site.read(name))
        next(one for one in readers[-1] if one["msg"] == "process_starts")
    for _ in range(100):
        if sum(page.running for page in map(site.shared.pages.find, ("one", "two")) if page) == 2:
            break
        threading.Event().wait(0.1)
    refused = site.run("three")
    assert not refused["success"] and "2 runs from your address" in refused["output"]["error"]
    for reader in readers:
        reader.close()


def test_a_program_may_listen_under_the_events_own_name(site: Site) -> None:
    body = {"data": ["stand", "Hi.", 64, 0.0, 0, 1.0, 0, False, False, "", "", "{}"], "session_hash": "named"}
    event = httpx.post(f"{site.url}gradio_api/call/run", json=body, timeout=60).json()["event_id"]
    with httpx.stream("GET", f"{site.url}gradio_api/call/run/{event}", timeout=60) as answer:
        assert "event: complete" in "".join(answer.iter_text())
    assert len(site.engine.asked) == 1


def test_a_reader_has_time_to_come_and_less_to_come_back() -> None:
    now, there = [0.0], [False]
    reader = Caller(hears=lambda: there[0], clock=lambda: now[0])
    now[0] = access.COMING_SECONDS - 0.1
    assert not reader.connected and not reader.gone
    there[0] = True
    assert reader.connected and not reader.gone
    there[0] = False
    assert not reader.gone
    now[0] += access.LEAVING_SECONDS + 0.1
    assert reader.gone
    never = Caller(hears=lambda: False, clock=lambda: now[0])
    now[0] += access.COMING_SECONDS + 0.1
    assert never.gone


def test_two_streams_of_a_session_are_one_reader_until_both_are_closed() -> None:
    found = Presence()
    with found.connected("s", "a", True):
        with found.connected("s", "a", True):
            assert found.hears("other", "s") and not found.hears("other", None)
        assert found.hears("s")
    assert not found.hears("s") and found.sessions_to_keep() == []
    with found.connected("s", "a", False):
        assert not found.hears("s") and found.sessions_to_keep() == ["s"], "a sign of life reads no events"


def test_an_address_with_many_pages_has_the_first_of_them_kept() -> None:
    found, most = Presence(), access.MOST_KEPT
    opened = [found.connected(f"page {number}", "a", False) for number in range(most + 10)]
    for one in opened:
        one.__enter__()
    with found.connected("theirs", "b", False):
        assert found.sessions_to_keep() == [*(f"page {number}" for number in range(most)), "theirs"]


@pytest.mark.slow
def test_unread_events_of_an_open_page_are_not_the_first_to_go(site: Site) -> None:
    unread = site.built._queue.pending_messages_per_session
    for name in ("mine", "stranger"):
        unread[name] = object()
    refresh(site.built.app, ["mine", "not there"])
    assert next(iter(unread)) == "stranger"


def test_the_state_of_closed_pages_is_forgotten_but_for_the_last_few() -> None:
    here, names = Presence(), [f"page {number}" for number in range(MOST_CLOSED + 3)]
    holder = SimpleNamespace(session_data=dict.fromkeys(names), time_last_used=dict.fromkeys(names), lock=threading.Lock())
    with here.connected("page 1", "here", reading=False):  # it came back
        for name in names:
            here.leave(holder, name)
    assert set(names) - set(holder.session_data) == {"page 0", "page 2"} == set(names) - set(holder.time_last_used)


@pytest.mark.slow
def test_a_crowd_of_visitors_leaves_no_state_behind(site: Site) -> None:
    form = Form(site.url)
    for _ in range(MOST_CLOSED + 6):
        Visitor(form).press({"sp-advanced": '{"of": "advanced", "values": {"baseline": false}}'})
    for _ in range(100):  # the last heartbeats end a moment after their pages
        if len(site.built.state_holder.session_data) <= MOST_CLOSED + 4:
            break
        threading.Event().wait(0.1)
    assert len(site.built.state_holder.session_data) <= MOST_CLOSED + 4
