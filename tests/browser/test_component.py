"""The stage outside the app, as CONTRIBUTING shows it: in another Gradio app, and as an element of a plain page."""

import gzip
import re
import threading
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.trace import store
from specviz.viewer import bundle
from tests.support.pages.stage import Visit
from tests.support.traces.samples import sample_trace

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]


def example(language):
    """The example in this language under "Use the stage elsewhere"."""
    guide = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Use the stage elsewhere")[2]
    found = re.search(rf"```{language}\n(.*?)```", guide, re.DOTALL)
    return found[1]


def test_in_another_gradio_app(browser, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = example("python").replace(
        "demo.launch(", 'demo.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", '
    )
    names = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    demo = names["demo"]
    try:
        with closing(browser.new_page()) as page:  # Gradio's own theme asks other sites for fonts
            page.goto(demo.local_url)
            expect(page.locator("svg.sv-tree .sv-node").first).to_be_visible()
            expect(page.locator(".sv-title")).to_have_text("EAGLE-3")
    finally:
        demo.close()


@pytest.fixture
def site(tmp_path):
    """A folder with the element's script, a trace file, the same packed, and what is no trace; and its address once served."""
    (tmp_path / "specviz.js").write_text(bundle.script() + bundle.script("element"), encoding="utf-8")
    text = store.text(sample_trace(6))
    (tmp_path / "run.spectrace.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "run.spectrace.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "other.jsonl").write_text("<p>Sign in</p>", encoding="utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tmp_path, f"http://127.0.0.1:{server.server_port}/page.html"
    server.shutdown()
    server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, *_):
        pass


STEPS = "document.querySelector('specviz-stage{}').specviz.stage.trace.steps.length"


def test_as_an_element_of_a_plain_page_without_a_server(browser, tmp_path):
    (tmp_path / "specviz.js").write_text(bundle.script() + bundle.script("element"), encoding="utf-8")
    trace = sample_trace(6)
    lines = bundle.embedded(store.text(trace))
    html, count = re.subn(r"LINES OF A TRACE FILE[^<]*<[^<]*", lambda found: lines, example("html"))
    assert count == 1
    (tmp_path / "page.html").write_text(f"<!doctype html><title>A page</title>{html}", encoding="utf-8")
    with closing(Visit(browser)) as visit:
        visit.page.goto((tmp_path / "page.html").as_uri())
        expect(visit.page.locator("specviz-stage svg.sv-tree .sv-node").first).to_be_visible()
        assert visit.page.evaluate(STEPS.format(":not([src])")) == len(trace.steps)
        expect(visit.page.locator("specviz-stage[src] [role=alert]")).to_contain_text("a page opened from disk reads no files")
        assert visit.errors and all("run.spectrace.jsonl" in one or "ERR_FAILED" in one for one in visit.errors)
        visit.errors.clear()


def test_the_element_fetches_the_trace_file_that_its_src_names(browser, site):
    folder, url = site
    names = ("run.spectrace.jsonl", "run.spectrace.jsonl.gz", "missing.jsonl", "other.jsonl")
    stages = "".join(f'<specviz-stage src="{name}">Loading</specviz-stage>' for name in names)
    (folder / "page.html").write_text(
        f'<!doctype html><link rel="icon" href="data:,"><title>A page</title>{stages}<script src="specviz.js"></script>',
        encoding="utf-8",
    )
    with closing(Visit(browser)) as visit:
        visit.own = (url.removesuffix("page.html"), *visit.own)
        visit.page.goto(url)
        expect(visit.page.locator("specviz-stage section.specviz")).to_have_count(2)
        for name in names[:2]:
            assert visit.page.evaluate(STEPS.format(f'[src="{name}"]')) == 6
        said = visit.page.locator("specviz-stage [role=alert]")
        expect(said).to_have_text(
            [re.compile("missing.jsonl is not shown. .* 404. Check the address."), re.compile("not a trace file")]
        )
        assert len(visit.errors) == 1 and "404" in visit.errors.pop()
