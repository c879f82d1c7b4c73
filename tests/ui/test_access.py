"""Who asks: by which name an app answers, which address counts, what a proxy before a private app takes away, who waits.

Strangers' requests end nobody's run, take nobody's state, and hold no place that they do not wait in.
"""

import asyncio
import json
import secrets
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import gradio as gr
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from specviz.bench.visitor import Form, Visitor
from specviz.errors import BadInput
from specviz.trace import store
from specviz.ui import access, page, settings
from specviz.ui.access import MOST_CLOSED, Caller, Presence, Watch, refresh
from specviz.ui.app_state import AppState
from specviz.ui.classroom.server import Classroom
from specviz.ui.tabs import request_form
from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages.served import served


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ([], "peer"),
        (["5.6.7.8"], "5.6.7.8"),
        (["1.2.3.4, 5.6.7.8"], "5.6.7.8"),
        (["1.2.3.4, 5.6.7.8, 10.0.0.7"], "5.6.7.8"),
        (["5.6.7.8, 192.168.1.1,172.16.0.2, 127.0.0.1"], "5.6.7.8"),
        (["5.6.7.8", "10.0.0.7"], "5.6.7.8"),
        (["5.6.7.8:4321"], "5.6.7.8"),
        (["[2606:4700::1]:443"], "2606:4700::1"),
        (["2606:4700::1, fd00::2"], "2606:4700::1"),
        (["::ffff:5.6.7.8, 100.64.0.1"], "5.6.7.8"),
        (["192.168.1.20"], "192.168.1.20"),
        (["192.168.1.20, 10.0.0.7"], "10.0.0.7"),
        (["5.6.7.8, unknown"], "unknown"),
        ([", ,"], "peer"),
        (["5.6.7.8, " + "x" * 9000], "x" * 64),
    ],
)
def test_the_last_public_address_is_the_visitors(headers, address):
    assert access.visitor([("X-Forwarded-For", value) for value in headers], "peer") == address


LOCAL = ("127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860", "127.8.8.8", "app.localhost:1", "localhost.:7860", "")
FOREIGN = (
    "evil.example:7961",
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example:80",
    "192.168.1.4:7860",
    "[::2]:1",
)


def client(state):
    return TestClient(access.Gate(PlainTextResponse("here"), lambda: state.settings, state.expose))


@pytest.mark.parametrize("host", LOCAL + FOREIGN)
def test_a_private_app_answers_to_its_own_name_alone(tmp_path, host):
    answer = client(app(tmp_path)).get("/", headers={"host": host, "origin": f"http://{host}"})
    assert (answer.status_code, answer.text) == ((200, "here") if host in LOCAL else (421, access.FOREIGN_HOST))


@pytest.mark.parametrize("host", FOREIGN)
def test_a_public_app_answers_to_every_name(tmp_path, host):
    assert client(app(tmp_path, private=False)).get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("header", access.FORWARDING)
def test_the_first_forwarded_request_takes_a_private_apps_privileges(tmp_path, header):
    state = app(tmp_path, exposed=settings.read({"GRADIO_SERVER_NAME": "0.0.0.0"}))
    assert request_form.model("a/b", state.settings) == "a/b" and state.live.seconds is None
    assert client(state).get("/", headers={"host": "tunnel.example", header: "5.6.7.8"}).status_code == 200
    assert state.live.seconds == 120
    with pytest.raises(BadInput, match="only the models on its list"):
        request_form.model("a/b", state.settings)


def test_what_the_owner_set_explicitly_stays():
    exposed = settings.read({"SPECVIZ_ANY_MODEL": "1", "SPECVIZ_MAX_SECONDS": "900", "SPECVIZ_MODELS": "qwen3-8b"}).exposed
    assert not exposed.private
    assert (exposed.any_model, exposed.max_seconds, exposed.models) == (True, 900, ("qwen3-8b",))


def test_the_whole_app_has_the_gate(tmp_path):
    state = app(tmp_path)
    kinds = [middleware.cls for middleware in page.launch_options(state)["app_kwargs"]["middleware"]]
    assert kinds[:4] == [access.Gate, Classroom, access.Turns, Watch], "what is refused costs nothing behind it"


@pytest.mark.parametrize(("waiting", "each"), [(48, 33), (3, 3), (1, 2)])
def test_one_address_has_its_share_of_the_line(tmp_path, waiting, each):
    assert app(tmp_path, max_waiting=waiting).pages.each == each


class Busy:
    """An app that answers nobody until it may, and counts who is inside."""

    def __init__(self):
        self.inside = []
        self.bodies = []
        self.free = asyncio.Event()
        self.turns = access.Turns(self, lambda scope: scope["client"][0])

    async def __call__(self, scope, receive, send):
        self.bodies.append(await Request(scope, receive).body())
        self.inside.append(scope["client"][0])
        await self.free.wait()
        await PlainTextResponse("done")(scope, receive, send)

    def ask(self, address, path, method="POST", **more):
        """A request that goes on by itself."""
        client = httpx.AsyncClient(transport=httpx.ASGITransport(self.turns, client=(address, 1)), base_url="http://here")
        return asyncio.create_task(client.request(method, path, **more))

    async def settled(self):
        """Wait until everybody who may come in is in."""
        for _ in range(100):
            await asyncio.sleep(0)


POSTED = [f"/gradio_api/{path}" for path in ("component_server", "queue/join", "run/predict", "api/x", "call/run", "call/v2/run")]
COSTLY = [*((path, "POST") for path in (*POSTED, "/")), ("/", "GET"), ("/", "HEAD"), ("/config", "GET"), ("/config/", "GET")]


@pytest.mark.parametrize(("path", "method"), COSTLY)
def test_few_of_an_address_go_on_at_once_others_wait_and_some_are_refused(path, method, monkeypatch):
    monkeypatch.setattr(access, "WAITING", 5)
    monkeypatch.setattr(access, "EVENT", access.Kind(3, 60.0))
    monkeypatch.setattr(access, "PAGE", access.Kind(2, 60.0))

    async def tried():
        busy, most = Busy(), 2 if method != "POST" else 3
        asked = [busy.ask("a", path, method) for _ in range(most + 5 + 4)]
        await busy.settled()
        assert busy.inside == ["a"] * most
        refused = [one.result() for one in asked if one.done()]
        assert [one.status_code for one in refused] == [503] * 4 and (method == "HEAD" or access.CROWDED in refused[0].text)
        asked[-5].cancel()  # of those that wait
        other = busy.ask("b", path, method)
        await busy.settled()
        assert busy.inside == ["a"] * most + ["b"], "another visitor does not wait for them"
        busy.free.set()
        answers = await asyncio.gather(*asked, other, return_exceptions=True)
        assert sum(isinstance(one, httpx.Response) and one.status_code == 200 for one in answers) == most + 4 + 1
        assert busy.turns._lines == {}

    asyncio.run(tried())


def test_a_request_that_waits_for_something_else_lets_the_next_one_in(monkeypatch):
    monkeypatch.setattr(access, "EVENT", access.Kind(1, 0.01))

    async def tried():
        busy = Busy()
        asked = [busy.ask("a", POSTED[0]) for _ in range(4)]
        while len(busy.inside) < 4:
            await asyncio.sleep(0.005)
        busy.free.set()
        assert [(await one).status_code for one in asked] == [200] * 4

    asyncio.run(tried())


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/queue/data", "/gradio_api/heartbeat/x", "/assets/a.js"])
def test_uploads_streams_and_files_wait_for_nobody(path):
    async def tried():
        busy = Busy()
        asked = [busy.ask("a", path, "POST" if path.endswith("upload") else "GET") for _ in range(access.EVENT.at_once + 9)]
        await busy.settled()
        assert len(busy.inside) == len(asked)
        busy.free.set()
        await asyncio.gather(*asked)

    asyncio.run(tried())


def test_a_body_arrives_as_it_was_sent_or_is_too_large():
    async def pieces():
        for _ in range(3):
            yield b"x" * (access.LEAST_BODY // 3)

    async def tried():
        busy = Busy()
        busy.free.set()
        assert (await busy.ask("a", POSTED[0], content=pieces())).status_code == 200
        assert busy.bodies == [b"x" * (access.LEAST_BODY // 3 * 3)]
        answer = await busy.ask("a", POSTED[0], content=b"x" * (access.LEAST_BODY + 1))
        assert answer.status_code == 413 and "8,000,000 bytes" in answer.text and len(busy.bodies) == 1

    asyncio.run(tried())


@dataclass
class Site:
    """A running app, and requests to it as programs send them."""

    shared: AppState
    engine: FakeEngine
    built: gr.Blocks
    url: str

    def event(self, name):
        """The number of the event whose handler has that name."""
        return next(key for key, one in self.built.fns.items() if one.name == name)

    def post(self, path, event, session, data):
        body = {"fn_index": self.event(event), "session_hash": session, "data": data}
        return httpx.post(f"{self.url}gradio_api/{path}", json=body, timeout=60)

    def join(self, session, method="stand"):
        """A run of the interface for programs."""
        return self.post("queue/join", "run", session, [method, "Hi.", 64, 0.0, 0, 1.0, 0, False, False, "", "", "{}"])

    def read(self, session):
        """The events of a session."""
        where = f"{self.url}gradio_api/queue/data?session_hash={session}"
        with httpx.stream("GET", where, timeout=60) as answer:
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])

    def run(self, session):
        """The last event of a whole run, read as a page would."""
        self.join(session)
        return next(one for one in self.read(session) if one["msg"] == "process_completed")


@pytest.fixture
def site(tmp_path):
    engine = FakeEngine(steps=6)
    shared = app(tmp_path, engine, max_waiting=6)
    built, url = served(shared)
    yield Site(shared, engine, built, url)
    built.close()


def whole(message):
    """How many steps the trace has that a run ended with; it has to be one that ended by itself."""
    found = message["output"]["data"][0]
    trace = store.read(found if isinstance(found, bytes) else found.encode())
    assert trace.end.reason == "budget"
    return len(trace.steps)


@pytest.mark.slow
def test_any_number_of_strangers_stops_nobody_and_takes_no_state(site, monkeypatch):
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


DOORS = {
    "component_server": {"data": [], "fn_name": "make_file", "component_id": 0, "session_hash": "new"},
    "run/predict": {"data": [], "fn_index": "halt", "session_hash": "new"},
    "run/halt": {"data": [], "fn_index": "halt", "session_hash": None},
    "queue/join": {"data": [], "fn_index": "methods", "session_hash": "new"},
    "call/methods": {"data": [], "session_hash": "new"},
    "call/v2/methods": {},
}


def test_a_request_of_an_unknown_session_asks_no_component_for_its_configuration(
    site, monkeypatch
):  # fmt: skip
    """There are some two hundred, which takes as long as all the rest of such a request twelve times."""
    asked = []

    def count(block, *_):
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


def test_runs_that_nobody_reads_are_not_run_and_free_their_places(site, monkeypatch):
    monkeypatch.setattr(access, "COMING_SECONDS", 1.0)
    monkeypatch.setattr(site.shared.pages, "each", 40)
    for number in range(7):
        assert site.join(f"phantom {number}").status_code == 200
    for _ in range(100):
        answer = site.run("victim")
        if answer["success"]:
            break
        assert "its queue is full" in answer["output"]["error"]
        threading.Event().wait(0.1)
    assert whole(site.run("victim")) == 6
    assert len(site.engine.asked) == 2, "the engine ran what somebody read and nothing else"


def test_one_address_cannot_take_every_place(site, monkeypatch):
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
    assert not refused["success"] and "2 runs are already waiting or running" in refused["output"]["error"]
    for reader in readers:
        reader.close()


def test_a_program_may_listen_under_the_events_own_name(site):
    body = {"data": ["stand", "Hi.", 64, 0.0, 0, 1.0, 0, False, False, "", "", "{}"], "session_hash": "named"}
    event = httpx.post(f"{site.url}gradio_api/call/run", json=body, timeout=60).json()["event_id"]
    with httpx.stream("GET", f"{site.url}gradio_api/call/run/{event}", timeout=60) as answer:
        assert "event: complete" in "".join(answer.iter_text())
    assert len(site.engine.asked) == 1


def test_a_reader_has_time_to_come_and_less_to_come_back(monkeypatch):
    now, there = [0.0], [False]
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: now[0]))
    reader = Caller(hears=lambda: there[0])
    now[0] = access.COMING_SECONDS - 0.1
    assert not reader.connected and not reader.gone
    there[0] = True
    assert reader.connected and not reader.gone
    there[0] = False
    assert not reader.gone
    now[0] += access.LEAVING_SECONDS + 0.1
    assert reader.gone
    never = Caller(hears=lambda: False)
    now[0] += access.COMING_SECONDS + 0.1
    assert never.gone


def test_two_streams_of_a_session_are_one_reader_until_both_are_closed():
    found = Presence()
    with found.connected("s", "a", True):
        with found.connected("s", "a", True):
            assert found.hears("other", "s") and not found.hears("other", None)
        assert found.hears("s")
    assert not found.hears("s") and found.sessions_to_keep() == []
    with found.connected("s", "a", False):
        assert not found.hears("s") and found.sessions_to_keep() == ["s"], "a sign of life reads no events"


def test_an_address_with_many_pages_has_the_first_of_them_kept():
    found, most = Presence(), access.MOST_KEPT
    opened = [found.connected(f"page {number}", "a", False) for number in range(most + 10)]
    for one in opened:
        one.__enter__()
    with found.connected("theirs", "b", False):
        assert found.sessions_to_keep() == [*(f"page {number}" for number in range(most)), "theirs"]


@pytest.mark.slow
def test_unread_events_of_an_open_page_are_not_the_first_to_go(site):
    unread = site.built._queue.pending_messages_per_session
    for name in ("mine", "stranger"):
        unread[name] = object()
    refresh(site.built.app, ["mine", "not there"])
    assert next(iter(unread)) == "stranger"


def test_the_state_of_closed_pages_is_forgotten_but_for_the_last_few():
    here, names = Presence(), [f"page {number}" for number in range(MOST_CLOSED + 3)]
    holder = SimpleNamespace(session_data=dict.fromkeys(names), time_last_used=dict.fromkeys(names), lock=threading.Lock())
    with here.connected("page 1", "here", reading=False):  # it came back
        for name in names:
            here.leave(holder, name)
    assert set(names) - set(holder.session_data) == {"page 0", "page 2"} == set(names) - set(holder.time_last_used)


@pytest.mark.slow
def test_a_crowd_of_visitors_leaves_no_state_behind(site):
    form = Form(site.url)
    for _ in range(MOST_CLOSED + 6):
        Visitor(form).press({"sp-advanced": '{"of": "advanced", "values": {"baseline": false}}'})
    for _ in range(100):  # the last heartbeats end a moment after their pages
        if len(site.built.state_holder.session_data) <= MOST_CLOSED + 4:
            break
        threading.Event().wait(0.1)
    assert len(site.built.state_holder.session_data) <= MOST_CLOSED + 4
