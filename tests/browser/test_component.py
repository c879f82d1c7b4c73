"""The stage outside the app, as CONTRIBUTING shows it: in another Gradio app, and as an element of a plain page."""

import re
from contextlib import closing
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


def example(language: str) -> str:
    """The example in this language under "Use the stage elsewhere"."""
    guide = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Use the stage elsewhere")[2]
    found = re.search(rf"```{language}\n(.*?)```", guide, re.DOTALL)
    assert found is not None
    return found[1]


def test_in_another_gradio_app(browser, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = example("python").replace(
        "demo.launch(", 'demo.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", '
    )
    names: dict[str, object] = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    demo = names["demo"]
    try:
        with closing(browser.new_page()) as page:  # Gradio's own theme asks other sites for fonts
            page.goto(demo.local_url)
            expect(page.locator("svg.sv-tree .sv-node").first).to_be_visible()
            expect(page.locator(".sv-title")).to_have_text("EAGLE-3")
    finally:
        demo.close()


def test_as_an_element_of_a_plain_page(browser, tmp_path):
    (tmp_path / "specviz.js").write_text(bundle.script(), encoding="utf-8")
    trace = sample_trace(6)
    lines = bundle.embedded(store.text(trace))
    html, count = re.subn(r"LINES OF A TRACE FILE[^<]*<[^<]*", lambda found: lines, example("html"))
    assert count == 1
    (tmp_path / "page.html").write_text(f"<!doctype html><title>A page</title>{html}", encoding="utf-8")
    with closing(Visit(browser)) as visit:
        visit.page.goto((tmp_path / "page.html").as_uri())
        expect(visit.page.locator("specviz-stage svg.sv-tree .sv-node").first).to_be_visible()
        assert visit.page.evaluate("document.querySelector('specviz-stage').specviz.stage.trace.steps.length") == len(trace.steps)
        assert not visit.outside() and not visit.errors
