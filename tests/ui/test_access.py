"""Who asks: by which name an app answers, which address counts, and what a proxy before a private app takes away."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from specviz.errors import BadInput
from specviz.ui import access, page, settings
from specviz.ui.shared import AppState
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
    assert exposed is not None and not exposed.private
    assert (exposed.any_model, exposed.max_seconds, exposed.models) == (True, 900, ("qwen3-8b",))


def test_the_whole_app_has_the_gate(tmp_path: Path) -> None:
    state = app(tmp_path)
    kinds = [middleware.cls for middleware in page.launch_options(state)["app_kwargs"]["middleware"]]
    assert kinds[0] is access.Gate


@pytest.mark.parametrize(("waiting", "each"), [(48, 32), (3, 2), (1, 1)])
def test_one_address_has_its_share_of_the_line(tmp_path: Path, waiting: int, each: int) -> None:
    assert app(tmp_path, max_waiting=waiting).pages.each == each
