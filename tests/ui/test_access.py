"""Who asks: by which name an app answers, which address counts, what a proxy before a private app takes away, who waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from specviz.errors import BadInput
from specviz.ui import access, page, settings
from specviz.ui.access import Watch
from specviz.ui.app_state import AppState
from specviz.ui.tabs import request_form
from tests.support.fakes.ui import app


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
def test_the_last_public_address_is_the_visitors(headers: list[str], address: str) -> None:
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


def client(state: AppState) -> TestClient:
    return TestClient(access.Gate(PlainTextResponse("here"), lambda: state.settings, state.expose))


@pytest.mark.parametrize("host", LOCAL + FOREIGN)
def test_a_private_app_answers_to_its_own_name_alone(tmp_path: Path, host: str) -> None:
    answer = client(app(tmp_path)).get("/", headers={"host": host, "origin": f"http://{host}"})
    assert (answer.status_code, answer.text) == ((200, "here") if host in LOCAL else (421, access.FOREIGN_HOST))


@pytest.mark.parametrize("host", FOREIGN)
def test_a_public_app_answers_to_every_name(tmp_path: Path, host: str) -> None:
    assert client(app(tmp_path, private=False)).get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("header", access.FORWARDING)
def test_the_first_forwarded_request_takes_a_private_apps_privileges(tmp_path: Path, header: str) -> None:
    state = app(tmp_path, exposed=settings.read({"GRADIO_SERVER_NAME": "0.0.0.0"}))
    assert request_form.model("a/b", state.settings) == "a/b" and state.live.seconds is None
    assert client(state).get("/", headers={"host": "tunnel.example", header: "5.6.7.8"}).status_code == 200
    assert state.live.seconds == 120
    with pytest.raises(BadInput, match="only the models on its list"):
        request_form.model("a/b", state.settings)


def test_what_the_owner_set_explicitly_stays() -> None:
    exposed = settings.read({"SPECVIZ_ANY_MODEL": "1", "SPECVIZ_MAX_SECONDS": "900", "SPECVIZ_MODELS": "qwen3-8b"}).exposed
    assert not exposed.private
    assert (exposed.any_model, exposed.max_seconds, exposed.models) == (True, 900, ("qwen3-8b",))


def test_the_whole_app_has_the_gate(tmp_path: Path) -> None:
    state = app(tmp_path)
    kinds = [middleware.cls for middleware in page.launch_options(state)["app_kwargs"]["middleware"]]
    assert kinds[:3] == [access.Gate, access.Turns, Watch], "what is refused costs nothing behind it"


@pytest.mark.parametrize(("waiting", "each"), [(48, 33), (3, 3), (1, 2)])
def test_one_address_has_its_share_of_the_line(tmp_path: Path, waiting: int, each: int) -> None:
    assert app(tmp_path, max_waiting=waiting).pages.each == each


class Busy:
    """An app that answers nobody until it may, and counts who is inside."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.bodies: list[bytes] = []
        self.free = asyncio.Event()
        self.turns = access.Turns(self, lambda scope: scope["client"][0])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bodies.append(await Request(scope, receive).body())
        self.inside.append(scope["client"][0])
        await self.free.wait()
        await PlainTextResponse("done")(scope, receive, send)

    def ask(self, address: str, path: str, method: str = "POST", **more: Any) -> asyncio.Task[httpx.Response]:
        """A request that goes on by itself."""
        client = httpx.AsyncClient(transport=httpx.ASGITransport(self.turns, client=(address, 1)), base_url="http://here")
        return asyncio.create_task(client.request(method, path, **more))

    async def settled(self) -> None:
        """Wait until everybody who may come in is in."""
        for _ in range(100):
            await asyncio.sleep(0)


POSTED = [f"/gradio_api/{path}" for path in ("component_server", "queue/join", "run/predict", "api/x", "call/run", "call/v2/run")]
COSTLY = [*((path, "POST") for path in (*POSTED, "/")), ("/", "GET"), ("/", "HEAD"), ("/config", "GET"), ("/config/", "GET")]


@pytest.mark.parametrize(("path", "method"), COSTLY)
def test_few_of_an_address_go_on_at_once_others_wait_and_some_are_refused(
    path: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "WAITING", 5)
    monkeypatch.setattr(access, "EVENT", access.Kind(3, 60.0))
    monkeypatch.setattr(access, "PAGE", access.Kind(2, 60.0))

    async def tried() -> None:
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


def test_a_request_that_waits_for_something_else_lets_the_next_one_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "EVENT", access.Kind(1, 0.01))

    async def tried() -> None:
        busy = Busy()
        asked = [busy.ask("a", POSTED[0]) for _ in range(4)]
        while len(busy.inside) < 4:
            await asyncio.sleep(0.005)
        busy.free.set()
        assert [(await one).status_code for one in asked] == [200] * 4

    asyncio.run(tried())


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/queue/data", "/gradio_api/heartbeat/x", "/assets/a.js"])
def test_uploads_streams_and_files_wait_for_nobody(path: str) -> None:
    async def tried() -> None:
        busy = Busy()
        asked = [busy.ask("a", path, "POST" if path.endswith("upload") else "GET") for _ in range(access.EVENT.at_once + 9)]
        await busy.settled()
        assert len(busy.inside) == len(asked)
        busy.free.set()
        await asyncio.gather(*asked)

    asyncio.run(tried())


def test_a_body_arrives_as_it_was_sent_or_is_too_large() -> None:
    async def pieces() -> Any:
        for _ in range(3):
            yield b"x" * (access.LEAST_BODY // 3)

    async def tried() -> None:
        busy = Busy()
        busy.free.set()
        assert (await busy.ask("a", POSTED[0], content=pieces())).status_code == 200
        assert busy.bodies == [b"x" * (access.LEAST_BODY // 3 * 3)]
        answer = await busy.ask("a", POSTED[0], content=b"x" * (access.LEAST_BODY + 1))
        assert answer.status_code == 413 and "8,000,000 bytes" in answer.text and len(busy.bodies) == 1

    asyncio.run(tried())
