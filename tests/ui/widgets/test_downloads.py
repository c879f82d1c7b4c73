"""Any run can be saved in any format, made once, and a question that makes no sense is answered with a sentence."""

from xml.etree import ElementTree

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specviz.ui import theme
from specviz.ui.archive import MINE
from specviz.ui.widgets import downloads
from tests.support.fakes.ui import app
from tests.support.traces.samples import lines, sample_trace


@pytest.fixture
def shared(tmp_path):
    return app(tmp_path)


@pytest.fixture
def save(shared):
    client = TestClient(Starlette(routes=[downloads.route(shared.archive, lambda scope: "here")]))
    return lambda run="stand", kind="trace", step=1: client.get("/specviz/file", params={"run": run, "kind": kind, "step": step})


def test_the_trace_file_comes_back_as_it_was(shared, save):
    name = MINE + shared.archive.store.new(lines(sample_trace(4)), checked=True)
    answer = save(name)
    assert answer.text == shared.archive.text(name) and answer.headers["content-encoding"] == "gzip"
    assert save().text == shared.archive.text("stand")
    assert 'filename="stand-smollm2-135m-instruct.spectrace.jsonl"' in save().headers["content-disposition"]


@pytest.mark.parametrize("kind", theme.texts()["formats"])
def test_every_button_s_file_is_what_it_says(save, kind):
    answer = save(kind=kind, step="3" if kind in ("graphml", "nodelink") else "")
    ending = answer.headers["content-disposition"].rstrip('"').rpartition(".")[2]
    assert answer.headers["content-type"].partition(";")[0] == theme.texts()["types"][ending]
    assert ending != "json" or answer.json()
    assert ending != "html" or "default-src 'none'" in answer.text


def test_a_tree_is_that_of_the_step_on_the_screen(shared, save):
    answer = save(kind="graphml", step=3)
    nodes = ElementTree.fromstring(answer.text).findall(".//{*}node")
    drawn = shared.archive.trace("stand").steps[2].nodes
    assert len(nodes) in (len(drawn), len(drawn) + 1)
    assert answer.headers["content-disposition"].endswith('-step-3.graphml"')


@pytest.mark.parametrize(
    "asked",
    [
        ("stand", "exe", 1), ("stand", "graphml", 0), ("stand", "graphml", 99), ("stand", "graphml", ""),
        ("stand", "graphml", "1e9"), ("../x", "trace", 1), ("mine:guess", "trace", 1), ("", "trace", 1), ("stand", "", 1),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_is_explained(save, asked):
    answer = save(*asked)
    assert answer.status_code == 400 and answer.text.endswith(".")


def test_a_file_is_made_once_and_the_latest_are_kept_within_bounds(shared, monkeypatch):
    made, make = [], downloads.make
    monkeypatch.setattr(downloads, "make", lambda archive, run, kind, step: made.append(kind) or make(archive, run, kind, step))
    files = downloads.Files(shared.archive, lambda scope: "here", kept_bytes=2_000)
    client = TestClient(Starlette(routes=[downloads.Route("/file", files.answer)]))
    for step in (1, 7):
        assert client.get("/file", params={"run": "stand", "kind": "summary", "step": step}).status_code == 200
    assert made == ["summary"], "a file of the whole run is that of every step"
    for step in range(1, 13):
        client.get("/file", params={"run": "stand", "kind": "nodelink", "step": step})
    assert len(made) == 13 and 1 <= len(files.cached) < 13
    assert sum(len(packed) for _, packed in files.cached.values()) <= 2_000
    assert next(reversed(files.cached)) == ("stand", "nodelink", 12)


def test_a_run_that_goes_on_is_saved_as_far_as_it_is(shared, save):
    written = lines(sample_trace(3))
    key = shared.archive.store.new(written[:2])
    assert '"kind":"end"' not in save(MINE + key, "trace", 1).text
    for line in written[2:]:
        shared.archive.store.append(key, line)
    assert '"kind":"end"' in save(MINE + key, "trace", 1).text
