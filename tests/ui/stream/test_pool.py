"""Whatever turns a kept run into data or files goes through one pool: few at once, no server thread held, made once."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specviz.errors import BadInput
from specviz.trace import store as traces
from specviz.ui import page
from specviz.ui.app_state import AppState
from specviz.ui.run_lookup import MINE
from specviz.ui.stream import pool
from specviz.ui.stream.pool import Made, Pool
from specviz.ui.widgets import choice, downloads
from tests.support.fakes.ui import app
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
    return lambda built, shared, name: handler(built, "play_chosen", tab)(choice.listed({}, name), [], VISITOR)


KINDS: dict[str, Ask] = {
    **{f"saved as {kind}": saved(kind) for kind, *_ in downloads.FORMATS},
    **{f"played in tab {tab}": played(tab) for tab in range(3)},
    "shown from the list of traces": lambda built, shared, name: handler(built, "play")(name, VISITOR, [], [], []),
    "chosen in the list of traces": lambda built, shared, name: handler(built, "enter")(name, [], VISITOR),
    "drawn as figures": lambda built, shared, name: handler(built, "drawn")(name, "light", VISITOR),
    "compared": lambda built, shared, name: handler(built, "pair")(name, "stand", [], "", 0.0, ("", 0.0), VISITOR),
    "named by an address": lambda built, shared, name: handler(built, "arrive")("", addressed(name), [], [], []),
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
