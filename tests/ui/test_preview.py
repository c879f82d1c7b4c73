"""What sites that show links read of a page: the run of its address, and a picture of it."""

import re

import httpx
import pytest
from msgspec.structs import replace

from specviz.trace import store
from specviz.ui.archive import MINE
from specviz.ui.tabs.learn_tab import course
from tests.support.fakes.ui import FakeEngine, app, recorded, written
from tests.support.pages.served import served

META = re.compile(r'<meta (?:property|name)="((?:og|twitter):\w+)" content="([^"]*)">')


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return app(tmp_path_factory.mktemp("app"), FakeEngine())


@pytest.fixture(scope="module")
def url(shared):
    built, found = served(shared)
    yield found
    built.close()


def described(url, query="", **headers):
    """The tags of a page, each of which must be there once."""
    text = httpx.get(f"{url}{query}", headers=headers).text
    found = META.findall(text)
    assert len(found) == len(dict(found)) and "raw.githubusercontent" not in text.partition("<script>")[0]
    return dict(found)


def test_a_link_to_a_run_has_its_title_text_and_picture(shared, url):
    run = shared.archive.run("stand")
    found = described(url, "?trace=stand&step=3")
    assert found["og:title"] == f"{run.title} on {run.target}" and found["twitter:card"] == "summary_large_image"
    assert "one token at a time" in found["og:description"] and run.prompt[:20] in found["og:description"]
    picture = httpx.get(found["og:image"].replace("&amp;", "&"))
    assert picture.headers["content-type"] == "image/png" and picture.content.startswith(b"\x89PNG")
    assert found["og:image"].startswith(url)
    assert described(url)["og:title"] != found["og:title"], "without a run it describes the first one"


def test_a_link_to_a_pair_or_a_lesson_is_described_as_such(shared, url):
    left, right = list(shared.archive.gallery.recordings.values())[-2:]
    pair = described(url, f"?tab=compare&left={left.name}&right={right.name}")
    assert (
        pair["og:title"].startswith(f"{left.run.title} beside {right.run.title} on ") and f"run={left.name}" in pair["og:image"]
    )
    name, lesson = list(course(shared).items())[-1]
    found = described(url, f"?tab=learn&lesson={name}&at=2")
    assert found["og:title"] == lesson.title and f"run={lesson.trace}" in found["og:image"]


def test_behind_a_proxy_the_picture_has_the_address_that_visitors_use(url):
    found = described(url, "?trace=stand", **{"x-forwarded-proto": "https"})
    assert found["og:image"].startswith("https://")


def test_a_run_that_is_not_shared_or_not_there_is_not_described(shared, url):
    name = MINE + shared.archive.store.new(written("stand").splitlines(), checked=True)
    for query in (f"?trace={name}", "?trace=nothing", '?trace="><script>alert(1)</script>'):
        assert described(url, query) == {}
        assert "alert(1)" not in httpx.get(f"{url}{query}").text.partition("<style>")[0]
    assert httpx.get(f"{url}specviz/file", params={"kind": "card", "run": name}).status_code == 400


def test_what_a_prompt_says_cannot_leave_its_tag(tmp_path):
    shared, trace = app(tmp_path, FakeEngine()), recorded("stand", 16)
    hostile = trace.replace(run=replace(trace.run, prompt='"><script>alert(2)</script>'))
    (tmp_path / "traces" / "stand.spectrace.jsonl").write_text(store.text(hostile), encoding="utf-8")
    built, url = served(shared)
    try:
        head = httpx.get(f"{url}?trace=stand").text.partition("<style>")[0]
    finally:
        built.close()
    assert "&quot;&gt;&lt;script&gt;alert(2)" in head and "<script>alert(2)" not in head
