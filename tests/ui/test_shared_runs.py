"""A run is kept only once it is shared, within bounds, and found by nobody who has not its link."""

import asyncio
import os
import time
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specviz.errors import BadInput
from specviz.trace.store import TraceStore
from specviz.ui import page, shared_runs
from specviz.ui.access import EVENT, kind
from specviz.ui.archive import MINE
from specviz.ui.shared_runs import DAY, SharedRuns
from specviz.ui.widgets import downloads
from tests.support.fakes.ui import VISITOR, app
from tests.support.traces.samples import lines, sample_trace


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    return app(tmp_path)


@pytest.fixture
def share(shared):
    client = TestClient(Starlette(routes=[downloads.share_route(shared.archive, lambda scope: "here")]))
    return lambda name: client.post("/specviz/share", params={"run": name})


def stored(shared, steps=4, seed=0, ended=True):
    return MINE + shared.archive.store.new(lines(sample_trace(steps, seed, ended=ended)), checked=True)


def kept(shared):
    return sorted(shared.archive.shared.folder.glob("*"))


def forget(shared, name):
    """As after a restart of the app."""
    shared.archive.store.drop(name.removeprefix(MINE))


def test_nothing_is_kept_before_it_is_shared_and_then_the_run_alone(shared, share):
    name, other = stored(shared), stored(shared, seed=1)
    assert not shared.archive.shared.folder.exists()
    answer = share(name)
    assert answer.status_code == 200 and answer.text.endswith("UTC")
    assert [path.name for path in kept(shared)] == [f"{name.removeprefix(MINE)}.spectrace.jsonl.gz"]
    assert shared.archive.shared.folder.stat().st_mode & 0o077 == 0
    text = shared.archive.text(name)
    forget(shared, name)
    assert asyncio.run(shared.archive.recall(name, "there")) == "text"
    assert shared.archive.text(name) == text
    with pytest.raises(BadInput, match="no longer kept"):
        asyncio.run(shared.archive.recall(other, "there"))


def test_a_run_is_deleted_when_its_days_are_over(shared, share):
    name = stored(shared)
    share(name)
    (path,) = kept(shared)
    os.utime(path, (time.time(), time.time() - 7 * DAY - 1))
    forget(shared, name)
    with pytest.raises(BadInput, match="after 7 days"):
        asyncio.run(shared.archive.recall(name, "there"))
    assert kept(shared) == [] and not shared.archive.shared.until(name.removeprefix(MINE))


@pytest.mark.parametrize("key", ["", "x", "../settings", "a" * 24, "*", "x/../y", "\0", "\ud800", "a" * 5000])
def test_a_key_that_nobody_was_given_finds_nothing(shared, share, key):
    share(stored(shared))
    with pytest.raises(BadInput, match="no longer kept"):
        asyncio.run(shared.archive.recall(MINE + key, "there"))
    for path in kept(shared):
        path.rename(path.parent.parent / "settings.spectrace.jsonl.gz")
    assert shared.archive.shared.until(key) == ""


@pytest.mark.parametrize("name", ["", "mine:guess", "stand", "../x", "mine:../x", "mine:" + "a" * 24])
def test_only_a_stored_run_can_be_shared(shared, share, name):
    answer = share(name)
    assert answer.status_code == 400 and answer.text.endswith(".")
    assert not shared.archive.shared.folder.exists()


def test_a_run_that_is_going_on_and_one_that_is_too_large_are_refused(shared, share, monkeypatch):
    assert "not over yet" in share(stored(shared, ended=False)).text
    monkeypatch.setattr(shared_runs, "LARGEST", 1000)
    answer = share(stored(shared))
    assert answer.status_code == 400 and "exceeds" in answer.text and not kept(shared)


def test_the_least_recently_opened_go_first(tmp_path):
    store = TraceStore()
    runs = SharedRuns(store, tmp_path / "shared", 7, most_runs=2)
    keys = [store.new(lines(sample_trace(3, seed)), checked=True) for seed in range(3)]
    for age, key in enumerate(keys[:2]):
        runs.keep(key, "here")
        path = next(runs.folder.glob(f"{key}*"))
        os.utime(path, (time.time() - 100 + age, path.stat().st_mtime))
    runs.restore(keys[0])
    runs.keep(keys[2], "here")
    assert [bool(runs.until(key)) for key in keys] == [True, False, True]
    runs.most_bytes = 1
    runs.keep(keys[0], "here")
    assert not any(runs.until(key) for key in keys)


def test_one_address_shares_so_many_an_hour_and_others_still_can(tmp_path, monkeypatch):
    store = TraceStore()
    runs = SharedRuns(store, tmp_path / "shared", 7, each=2)
    key = store.new(lines(sample_trace(3)), checked=True)
    for _ in range(2):
        runs.keep(key, "here")
    with pytest.raises(BadInput, match="2 per hour"):
        runs.keep(key, "here")
    assert runs.keep(key, "there")
    later = time.time() + 3601
    monkeypatch.setattr(shared_runs.time, "time", lambda: later)
    assert runs.keep(key, "here")


def test_an_app_that_keeps_no_runs_says_so(tmp_path):
    store = TraceStore()
    runs = SharedRuns(store, tmp_path / "shared", 0)
    with pytest.raises(BadInput, match="0 days"):
        runs.keep(store.new(lines(sample_trace(3)), checked=True), "here")
    assert not runs.folder.exists()


def test_sharing_takes_turns_like_every_costly_request(shared):
    assert kind({"type": "http", "method": "POST", "path": f"/{downloads.SHARE}"}) is EVENT
    paths = [route.path for route in page.launch_options(shared)["app_kwargs"]["routes"]]
    assert f"/{downloads.SHARE}" in paths


def test_a_link_shows_its_run_with_a_date_and_one_that_is_over_says_so(shared, share):
    name = stored(shared)
    until = share(name).text
    forget(shared, name)
    built = page.build(shared)
    tabs = next(handler.fn.__self__ for handler in built.fns.values() if getattr(handler.fn, "__name__", "") == "arrive")

    def opened():
        visit = SimpleNamespace(**{**vars(VISITOR), "query_params": {"trace": name}})
        updates = asyncio.run(tabs.arrive("", visit, [], [], []))
        return {label: updates.get(getattr(tabs.by_id["text"], label)) for label in ("stage", "banner", "run_name")}

    found = opened()
    assert found["run_name"] == name and name in found["stage"] and until in found["banner"].value
    for path in kept(shared):
        path.unlink()
    found = opened()
    assert "no longer kept" in found["banner"].value and found["stage"] is None and found["run_name"] == "token_recycling"


def test_another_site_frames_a_recorded_or_a_shared_run_and_no_other(shared, share):
    client = TestClient(Starlette(routes=[downloads.route(shared.archive, lambda scope: "here")]))

    def framed(name):
        return client.get("/specviz/file", params={"run": name, "kind": "embed", "step": "3"})

    name = stored(shared)
    assert framed(name).status_code == 400 and "no longer kept" in framed(name).text
    share(name)
    for run in (name, "stand"):
        answer = framed(run)
        assert answer.headers["content-type"].startswith("text/html") and "content-disposition" not in answer.headers
        assert answer.headers["content-security-policy"] == "sandbox allow-scripts"
        assert "default-src 'none'" in answer.text and "gradio" not in answer.text.lower()
    assert framed("nowhere").status_code == 400
    for path in kept(shared):
        path.unlink()
    assert framed(name).status_code == 400, "the page that was made is shown after its run is gone"
