"""What travels to a visitor: one page, compressed, without the viewer's script and without what other tabs show."""

import gzip
import http.client
import json
import re
from urllib.parse import urlsplit

import pytest

from specviz.ui import page as delivery
from specviz.ui.app_state import make
from specviz.ui.settings import Settings
from specviz.ui.tabs import about_tab
from specviz.viewer import bundle
from tests.support.fakes.ui import FakeEngine, app, gallery
from tests.support.pages.app import served

STAGES = ("sp-see-stage", "sp-image-stage", "sp-left", "sp-right", "sp-lesson")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return app(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def url(shared):
    with served(shared) as found:
        yield found


def answer(url, path="/", **headers):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def components(page):
    """Properties of the page's components, by element id."""
    config = re.search(r"window\.gradio_config = (.*?);</script>", page.decode(), re.DOTALL)
    return {entry["props"].get("elem_id"): entry["props"] for entry in json.loads(config[1])["components"]}


def test_the_page_is_compressed_for_a_browser_that_can_read_it(url):
    plain, page = answer(url)
    packed, body = answer(url, **{"Accept-Encoding": "gzip, deflate"})
    assert plain.getheader("Content-Encoding") is None and packed.getheader("Content-Encoding") == "gzip"
    assert "accept-encoding" in str(packed.getheader("Vary")).lower()
    assert len(body) < len(page) / 3 and gzip.decompress(body)[:200] == page[:200]


def test_the_page_has_only_the_run_that_it_opens_with(url, shared):
    default = shared.archive.gallery.default
    found = components(answer(url)[1])
    assert default.text in found["sp-stage"]["value"]
    for name in STAGES:  # a message at most
        assert not re.search('"kind":"(run|step|end)"', found[name]["value"]), name


def test_what_other_tabs_show_travels_when_they_are_opened(url):
    whole = answer(url)[1].decode()
    assert "data:image/" not in whole and "sp-scenes" in whole
    assert about_tab.INTRODUCTION[:40] not in whole and "sp-about" in whole


def test_the_head_knows_the_tab_of_a_run_that_is_not_text(tmp_path):
    traces = gallery(tmp_path / "traces", ("stand", "hivis", "lantern_pp"))
    head = delivery.launch_options(make(Settings(traces=traces), FakeEngine()))["head"]
    assert json.loads(re.findall("tabs = (.*?);", head)[0]) == {"hivis": "vision-language", "lantern_pp": "image"}
    assert "<" not in re.sub(r"</?script[^>]*>", "", delivery.head({"</script><b>": "image"}))


def test_the_viewer_s_script_travels_once_in_a_file_that_is_kept(url):
    response, page = answer(url)
    assert b"SpecvizViewer =" not in page and page.count(delivery.script_address().encode()) == 1
    assert response.getheader("Link") == f"<{delivery.script_address()}>; rel=preload; as=script"
    file, script = answer(url, f"/{delivery.script_address()}")
    assert script.decode() == bundle.script() and "immutable" in str(file.getheader("Cache-Control"))
    assert str(file.getheader("Content-Type")).startswith("text/javascript")
    assert answer(url, "/config")[0].getheader("Link") is None
