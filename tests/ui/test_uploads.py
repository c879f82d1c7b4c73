"""Uploads are read a few at a time and within bounds, and whatever goes wrong is said without a path of the server."""

import asyncio
import threading
from pathlib import Path

import pytest

from specviz.errors import BadInput, SpecvizError
from specviz.trace import store as traces
from specviz.trace.store import TraceStore
from specviz.ui import archive
from specviz.ui.archive import Archive, Gallery, Pool
from specviz.ui.tabs import traces_tab
from specviz.ui.widgets import examples as scene_shelf
from tests.support.fakes.ui import app
from tests.support.traces.samples import dump, sample_trace


def reader_of(store, pool=None, seconds=archive.SECONDS):
    return Archive(Gallery(Path("nowhere")), store, pool or Pool(), seconds)


class Gate:
    """Stands in for the reading of a file: counts who is in, and lets nobody out before it is told to."""

    def __init__(self, monkeypatch):
        self.free = threading.Event()
        self.inside = self.most = self.reads = 0
        self.lock = threading.Lock()
        whole = traces.rewritten

        def rewritten(content):
            with self.lock:
                self.inside += 1
                self.reads += 1
                self.most = max(self.most, self.inside)
            self.free.wait(30)
            yield from whole(content)
            with self.lock:
                self.inside -= 1

        monkeypatch.setattr(archive.traces, "rewritten", rewritten)


def files(folder, count):
    """Trace files that differ."""
    return [dump(folder / f"{seed}.spectrace.jsonl", sample_trace(2, seed=seed)) for seed in range(count)]


async def all_of(reader, paths, gate=None):
    """What each of them comes to when all are brought at once."""
    asked = [asyncio.ensure_future(reader.open(path)) for path in paths]
    if gate is not None:
        while len(reader.pool.jobs) < min(reader.pool.most, len(paths)):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        gate.free.set()
    return await asyncio.gather(*asked, return_exceptions=True)


def test_no_more_are_read_at_once_than_there_are_readers(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    found = asyncio.run(all_of(reader_of(TraceStore(), Pool(2)), files(tmp_path, 9), gate))
    assert gate.most == 2 and all(isinstance(one, str) for one in found)


def test_one_content_is_read_once_whatever_the_number_of_visitors(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    gate.free.set()
    store = TraceStore(max_traces=1)
    reader = reader_of(store)
    one, other = files(tmp_path, 2)
    found = asyncio.run(all_of(reader, [one] * 30))
    assert [each for each in found if each != found[0]] == [] and gate.reads == 1
    asyncio.run(reader.open(other))  # which takes the only place in the store
    assert asyncio.run(reader.open(one)).removeprefix("mine:") in store and gate.reads == 3


def test_a_file_that_takes_too_long_is_refused_and_not_kept(tmp_path):
    store = TraceStore()
    with pytest.raises(BadInput, match="the limit of this app"):
        asyncio.run(reader_of(store, seconds=0.0).open(files(tmp_path, 1)[0]))
    assert len(store._entries) == 0


def test_a_reader_whose_file_was_bad_reads_the_next(tmp_path):
    reader = reader_of(TraceStore(), Pool(1))
    bad = tmp_path / "bad.spectrace.jsonl"
    bad.write_text("{}", encoding="utf-8")
    found = asyncio.run(all_of(reader, [bad, *files(tmp_path, 1), bad]))
    assert [isinstance(one, str) for one in found] == [False, True, False]
    assert not reader.pool.jobs


def test_no_error_of_an_upload_names_a_path(tmp_path):
    gone = tmp_path / "gone.spectrace.jsonl"
    with pytest.raises(BadInput) as trace:
        asyncio.run(reader_of(TraceStore()).open(gone))
    pictures = [tmp_path / "gone.png", tmp_path, tmp_path / ("x" * 300)]
    told = [str(trace.value)]
    for path in pictures:
        with pytest.raises(SpecvizError) as picture:
            scene_shelf.uploaded_picture(str(path))
        told.append(str(picture.value))
    assert not [one for one in told if str(tmp_path) in one or "gone" in one or "Errno" in one]


def test_a_kept_run_is_told_from_its_ends_alone(tmp_path):
    shared = app(tmp_path)
    for ended in (True, False):
        trace = sample_trace(5, ended=ended)
        name = asyncio.run(shared.archive.open(dump(tmp_path / f"{ended}.spectrace.jsonl", trace)))
        found = shared.archive.outline(name)
        assert (found.run, found.end, found.steps) == (trace.run, trace.end, 5)
        assert found.tokens == sum(len(step.emitted) for step in trace.steps)
        assert traces_tab.facts(found)
