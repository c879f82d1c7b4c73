"""Whatever turns a kept run into data or files goes through one pool: few at once, no server thread held, made once."""

import asyncio
import json
import threading
from types import SimpleNamespace
from urllib.parse import urlencode

import httpx
import pytest
from gradio.routes import App
from starlette.requests import Request

from specviz.errors import BadInput
from specviz.trace import store as traces
from specviz.ui import archive, page, theme
from specviz.ui.archive import MINE, Pool
from specviz.ui.widgets import downloads
from tests.support.fakes.ui import VISITOR, app
from tests.support.traces.samples import lines, sample_trace


def handler(built, name, place=0):
    """The ``place``-th event handler of this name on the page."""
    return [one.fn for one in built.fns.values() if one.fn is not None and one.fn.__name__ == name][place]


def addressed(name):
    return SimpleNamespace(**{**vars(VISITOR), "query_params": {"trace": name}})


def saved(kind):
    def ask(built, shared, name):
        files = downloads.Files(shared.archive, lambda scope: "here")
        query = urlencode({"run": name, "kind": kind}).encode()
        return files.answer(Request({"type": "http", "query_string": query, "headers": []}))

    return ask


def played(tab):
    return lambda built, shared, name: handler(built, "play_chosen", tab)(name, [], VISITOR)


def uploaded(built, shared, name):
    """The list of traces shows ``name`` again beside the file that is opened."""
    file = shared.settings.traces / "upload.spectrace.jsonl"
    file.write_text("\n".join(lines(sample_trace(4, seed=3))), encoding="utf-8")
    (button,) = (one for one in built.blocks.values() if getattr(one, "elem_id", "") == "sp-upload")
    (take,) = (one.fn for one in built.fns.values() if (button._id, "upload") in one.targets)
    taken = take(str(file), name, VISITOR, [])
    return taken


KINDS = {
    **{f"saved as {kind}": saved(kind) for kind in theme.texts()["formats"]},
    **{f"played in tab {tab}": played(tab) for tab in range(3)},
    "shown from the list of traces": lambda built, shared, name: handler(built, "play")(name, VISITOR, [], [], []),
    "chosen in the list of traces": lambda built, shared, name: handler(built, "enter")(name, VISITOR, []),
    "drawn as figures": lambda built, shared, name: handler(built, "drawn")(name, "light", VISITOR),
    "compared": lambda built, shared, name: handler(built, "pair")(name, "stand", VISITOR, [], "", 0.0, ("", 0.0)),
    "named by an address": lambda built, shared, name: handler(built, "arrive")("", addressed(name), [], [], []),
    "opened as a file": uploaded,
    "kept by a page": lambda built, shared, name: handler(built, "arrive")(
        json.dumps({"sp": {"form": [], "lines": shared.archive.text(name)}}), VISITOR, [], [], []
    ),
}


def busy(shared, free):
    """Give every worker of the pool something to do until ``free`` is set."""
    for _ in range(archive.WORKERS):
        shared.archive.pool.submit(lambda: free.wait(30))


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    shared = app(tmp_path_factory.mktemp("app"))
    return page.build(shared), shared


@pytest.mark.spread(5)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_run_is_read_in_the_pool_alone(kind, opened, monkeypatch):
    built, shared = opened
    name = MINE + shared.archive.store.new(lines(sample_trace(4, method="prompt_lookup")))
    shared.archive.shared.keep(name.removeprefix(MINE), "a")  # an address may name it only then
    where = set()

    def noted(plain):
        return lambda *given, **more: (where.add(threading.current_thread().name), plain(*given, **more))[1]

    for parser in ("read_lines", "collect", "decoded"):
        monkeypatch.setattr(traces, parser, noted(getattr(traces, parser)))

    async def asked():
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


def test_while_jobs_hold_the_interpreter_another_visitor_is_answered(opened, monkeypatch):
    """The attack of a review: one large run, and a hundred requests to save steps of it, each seconds of pure computing."""
    (built, shared), answered, late = opened, threading.Event(), threading.Event()
    name = MINE + shared.archive.store.new(lines(sample_trace(4)))
    read_lines = traces.read_lines

    def slow(content):
        while not answered.is_set() and not late.is_set():
            sum(range(1000))
        return read_lines(content)

    monkeypatch.setattr(traces, "read_lines", slow)
    (arrive,) = (number for number, one in built.fns.items() if one.api_name == "arrive")
    server = App.create_app(built, app_kwargs=page.launch_options(shared)["app_kwargs"])

    def client(address):
        transport = httpx.ASGITransport(server, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120)

    async def saved(attacker, step):
        return await attacker.get("/specviz/file", params={"run": name, "kind": "nodelink", "step": step})

    async def visit():
        async with client(ADDRESSES[0]) as one, client(ADDRESSES[1]) as other, client(ADDRESSES[2]) as visitor:
            asyncio.get_running_loop().call_later(60, late.set)
            attack = [asyncio.ensure_future(saved((one, other)[step % 2], 1 + step % 4)) for step in range(8)]
            while len(shared.archive.pool.jobs) < 4:
                await asyncio.sleep(0.01)
            asked = {"fn_index": arrive, "session_hash": "visitor", "data": ["", [], [], []]}
            page_opens = await visitor.post("/gradio_api/run/predict", json=asked)
            assert page_opens.status_code == 200 and page_opens.json()["data"]
            done = sum(one.done() for one in attack)
            answered.set()
            return done, await asyncio.gather(*attack)

    done, files = asyncio.run(visit())
    assert not done and not late.is_set(), "it is answered before any of the jobs is over"
    assert all(file.status_code == 200 for file in files)


def test_an_address_has_half_of_the_places_and_who_finds_none_is_told_so():
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


def test_a_job_may_read_what_the_pool_reads():
    one = Pool(1)
    assert asyncio.run(one.do(lambda: one.result(lambda: "inside"))) == "inside"
