"""Whatever turns a kept run into data or files goes through one pool: few at once, no server thread held, made once."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx
import pytest
from gradio.routes import App
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specviz.errors import BadInput
from specviz.trace import store as traces
from specviz.ui import page
from specviz.ui.app_state import AppState
from specviz.ui.run_lookup import MINE
from specviz.ui.stream import pool
from specviz.ui.stream.pool import Made, Pool
from specviz.ui.stream.presence import Caller
from specviz.ui.tabs import request_form, text_run
from specviz.ui.widgets import downloads
from tests.support.fakes.ui import FakeEngine, app, asked
from tests.support.traces.samples import lines, sample_trace

VISITOR: Any = SimpleNamespace(session_hash="a", query_params={}, headers={}, client=None)


def handler(built: gr.Blocks, name: str, place: int = 0) -> Any:
    """The ``place``-th event handler of this name on the page."""
    return [one.fn for one in built.fns.values() if one.fn is not None and one.fn.__name__ == name][place]


def addressed(name: str) -> Any:
    return SimpleNamespace(**{**vars(VISITOR), "query_params": {"trace": name}})


Ask = Callable[[gr.Blocks, AppState, str], Coroutine[Any, Any, Any]]


def saved(kind: str) -> Ask:
    return lambda built, shared, name: downloads.offer(shared.archive, [name, kind, 1])


def played(tab: int) -> Ask:
    return lambda built, shared, name: handler(built, "play_chosen", tab)(name, [], VISITOR)


def uploaded(built: gr.Blocks, shared: AppState, name: str) -> Coroutine[Any, Any, Any]:
    """The list of traces shows ``name`` again beside the file that is opened."""
    file = shared.settings.traces / "upload.spectrace.jsonl"
    file.write_text("\n".join(lines(sample_trace(4, seed=3))), encoding="utf-8")
    (button,) = (one for one in built.blocks.values() if getattr(one, "elem_id", "") == "sp-upload")
    (take,) = (one.fn for one in built.fns.values() if (button._id, "upload") in one.targets)
    taken: Coroutine[Any, Any, Any] = take(str(file), [], name, VISITOR)  # type: ignore[misc]
    return taken


def shown_again(built: gr.Blocks, shared: AppState, name: str) -> Coroutine[Any, Any, Any]:
    """A live run that never begins leaves the run before it on the stage."""
    request = request_form.request(asked(shared), shared.settings)
    shared.live.stream = FakeEngine(breaks=BadInput("Not today."), breaks_at=-1)
    return asyncio.to_thread(lambda: list(text_run.running(shared, Caller("a"), name, lambda: request)))


KINDS: dict[str, Ask] = {
    **{f"saved as {kind}": saved(kind) for kind, *_ in downloads.FORMATS},
    **{f"played in tab {tab}": played(tab) for tab in range(3)},
    "shown from the list of traces": lambda built, shared, name: handler(built, "play")(name, VISITOR, [], [], []),
    "chosen in the list of traces": lambda built, shared, name: handler(built, "enter")(name, [], VISITOR),
    "drawn as figures": lambda built, shared, name: handler(built, "drawn")(name, "light", VISITOR),
    "compared": lambda built, shared, name: handler(built, "pair")(name, "stand", [], "", 0.0, ("", 0.0), VISITOR),
    "named by an address": lambda built, shared, name: handler(built, "arrive")("", addressed(name), [], [], []),
    "opened as a file": uploaded,
    "shown again after a run that never began": shown_again,
    "kept by a page": lambda built, shared, name: handler(built, "arrive")(
        json.dumps({"sp": {"form": [], "lines": shared.archive.text(name)}}), VISITOR, [], [], []
    ),
}


def busy(shared: AppState, free: threading.Event) -> None:
    """Give every worker of the pool something to do until ``free`` is set."""
    for _ in range(pool.WORKERS):
        shared.archive.pool.submit(lambda: free.wait(30))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[gr.Blocks, AppState]:
    shared = app(tmp_path_factory.mktemp("app"))
    return page.build(shared), shared


@pytest.mark.spread(5)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_run_is_read_in_the_pool_alone(
    kind: str, opened: tuple[gr.Blocks, AppState], monkeypatch: pytest.MonkeyPatch
) -> None:
    built, shared = opened
    name = MINE + shared.archive.store.add(sample_trace(4, method="prompt_lookup"))
    where = set[str]()

    def noted(plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **more: (where.add(threading.current_thread().name), plain(*given, **more))[1]

    for parser in ("read_lines", "collect", "decoded"):
        monkeypatch.setattr(traces, parser, noted(getattr(traces, parser)))

    async def asked() -> Any:
        free, before = threading.Event(), threading.active_count()
        busy(shared, free)
        answer = asyncio.ensure_future(KINDS[kind](built, shared, name))
        await asyncio.sleep(0.05)
        assert not answer.done() and threading.active_count() < before + 10, "it waits for the pool"
        free.set()
        return await answer

    assert asyncio.run(asked())
    assert where and all(thread.startswith("pool") for thread in where)


ADDRESSES = ("203.0.113.1", "203.0.113.2", "203.0.113.3")


def test_while_jobs_hold_the_interpreter_another_visitor_is_answered(
    opened: tuple[gr.Blocks, AppState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack of a review: one large run, and a hundred requests to save steps of it, each seconds of pure computing."""
    (built, shared), answered, late = opened, threading.Event(), threading.Event()
    name = MINE + shared.archive.store.add(sample_trace(4))
    read_lines, interval = traces.read_lines, sys.getswitchinterval()

    def slow(content: Any) -> Any:
        while not answered.is_set() and not late.is_set():
            sum(range(1000))
        return read_lines(content)

    monkeypatch.setattr(traces, "read_lines", slow)
    (buttons,) = (one for one in built.blocks.values() if getattr(one, "elem_id", "") == "sp-downloads")
    (arrive,) = (number for number, one in built.fns.items() if one.api_name == "arrive")
    server = App.create_app(built, app_kwargs=page.launch_options(shared)["app_kwargs"])

    def client(address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(server, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/gradio_api", timeout=120)

    async def saved(attacker: httpx.AsyncClient, step: int) -> dict[str, Any]:
        asked = {"component_id": buttons._id, "fn_name": "make_file", "session_hash": "a", "data": [name, "nodelink", step]}
        answer: dict[str, Any] = (await attacker.post("/component_server", json=asked)).json()
        return answer

    async def visit() -> tuple[int, float, list[dict[str, Any]]]:
        async with client(ADDRESSES[0]) as one, client(ADDRESSES[1]) as other, client(ADDRESSES[2]) as visitor:
            asyncio.get_running_loop().call_later(60, late.set)
            attack = [asyncio.ensure_future(saved((one, other)[step % 2], 1 + step % 4)) for step in range(8)]
            while len(shared.archive.pool.jobs) < 4:
                await asyncio.sleep(0.01)
            asked = {"fn_index": arrive, "session_hash": "visitor", "data": ["", [], [], []]}
            page_opens = await visitor.post("/run/predict", json=asked)
            assert page_opens.status_code == 200 and page_opens.json()["data"]
            done, during = sum(one.done() for one in attack), sys.getswitchinterval()
            answered.set()
            return done, during, await asyncio.gather(*attack)

    done, during, files = asyncio.run(visit())
    assert not done and not late.is_set(), "it is answered before any of the jobs is over"
    assert all("path" in file for file in files)
    assert during == pytest.approx(pool.SWITCH_SECONDS) and sys.getswitchinterval() == pytest.approx(interval)


def test_a_job_of_one_key_is_done_once_and_a_file_is_made_once(tmp_path: Path) -> None:
    shared, made = app(tmp_path), list[int]()
    name = MINE + shared.archive.store.add(sample_trace(4))

    def make(number: int) -> Made:
        made.append(number)
        return Made.of("a.json", "application/json", "{}")

    async def many() -> list[Made]:
        return await asyncio.gather(*(shared.archive.pool.file(name, lambda: make(1)) for _ in range(30)))

    first, again = asyncio.run(many()), asyncio.run(many())
    assert made == [1] and {one.token for one in (*first, *again)} == {first[0].token}


def test_a_file_is_kept_before_its_job_is_over() -> None:
    """Whoever asks while the event loop is busy finds the job or the file, so that nothing is made a second time."""
    small, made = Pool(1, 5), Made.of("a.json", "application/json", "{}")

    async def busy() -> bool:
        asked = asyncio.ensure_future(small.file("a", lambda: made))
        await asyncio.sleep(0)
        behind = small.submit(lambda: small.find(made.token) is made).result(30)
        await asked
        return behind

    assert asyncio.run(busy())


def test_files_that_were_made_are_kept_within_bounds() -> None:
    one = Pool(kept_bytes=200)
    made = [asyncio.run(one.file(number, lambda: Made.of("a", "text/plain", "text"))) for number in range(40)]
    kept = [file for file in made if one.find(file.token)]
    assert 0 < len(kept) < 10 and kept == made[-len(kept) :]


def test_an_address_has_half_of_the_places_and_who_finds_none_is_told_so() -> None:
    free, small = threading.Event(), Pool(1, 5)
    for _ in range(3):
        small.submit(lambda: free.wait(30), owner="one")
    with pytest.raises(BadInput, match="Try again in a minute"):
        small.submit(lambda: free.wait(30), owner="one")
    for _ in range(3):
        small.submit(lambda: free.wait(30), owner="another")
    with pytest.raises(BadInput, match="Try again in a minute"):
        small.submit(lambda: free.wait(30), owner="a third")
    free.set()


def test_a_job_may_read_what_the_pool_reads() -> None:
    one = Pool(1)
    assert asyncio.run(one.do(lambda: one.result(lambda: "inside"))) == "inside"


def test_a_file_is_fetched_as_it_was_made_and_nobody_finds_another(tmp_path: Path) -> None:
    shared = app(tmp_path)
    client = TestClient(Starlette(routes=[pool.route(shared.archive.pool)]))
    name = MINE + shared.archive.store.new(lines(sample_trace(4)), checked=True)
    offer = asyncio.run(downloads.offer(shared.archive, [name, "trace", 1]))
    answer = client.get(f"/{offer['path']}")
    assert answer.text == shared.archive.text(name) and answer.headers["content-encoding"] == "gzip"
    assert offer["name"] in answer.headers["content-disposition"] and offer["size"] == len(answer.text.encode())
    assert client.get(f"/{pool.PATH}/guessed").status_code == 404
    again = asyncio.run(downloads.offer(shared.archive, [name, "trace", 7]))
    assert again["path"] == offer["path"], "a file of the whole run is that of every step"
    assert asyncio.run(downloads.offer(shared.archive, [name, "graphml", 99]))["error"]
    assert gzip.decompress(shared.archive.pool.find(offer["path"].rpartition("/")[2]).packed)  # type: ignore[union-attr]
