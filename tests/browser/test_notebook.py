"""A trace in a notebook: the stage in a frame on somebody else's page, opened at a step, deaf to what tokens say."""

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from specviz.viewer.replay import COMPRESS_ABOVE
from tests.support.pages.stage import PROJECTOR, patient
from tests.support.traces.made import hostile
from tests.support.traces.samples import sample_trace

pytestmark = pytest.mark.browser


@pytest.fixture
def notebook(browser, tmp_path):
    """``notebook(shown)`` is a page with that in it, as a notebook would put it there; it must ask nothing of the network."""
    context = browser.new_context(viewport=PROJECTOR)
    told = []

    def opened(shown):
        page = patient(context.new_page())
        page.on("request", lambda one: told.append(one.url))
        page.on("console", lambda one: told.append(one.text) if one.type == "error" else None)
        page.on("pageerror", lambda one: told.append(str(one)))
        file = tmp_path / "notebook.html"
        file.write_text(f"<!doctype html><meta charset=utf-8><h1>Mine</h1>{shown._repr_html_()}", encoding="utf-8")
        page.goto(file.as_uri())
        return page

    yield opened
    context.close()
    assert [one for one in told if not one.startswith(("file:", "data:", "blob:", "about:srcdoc"))] == []


@pytest.mark.parametrize("long", [False, True], ids=["plain", "compressed"])
def test_the_stage_stands_in_a_notebook_at_the_step_that_was_asked_for(notebook, long):
    trace = hostile(sample_trace(400, nodes=40) if long else sample_trace(8))
    shown = trace.show(step=5)
    assert ("data-gzip" in shown.page) == long, f"a trace is compressed above {COMPRESS_ABOVE} letters"
    page = notebook(shown)
    inside = page.frame_locator("iframe")
    expect(inside.locator(".specviz")).to_be_visible()
    expect(inside.locator(".sv-tree-card")).to_contain_text(f"Step 6 of {len(trace.steps)}")
    expect(inside.locator(".sv-node").first).to_be_visible()
    frame = page.frames[1]
    assert frame.evaluate("[stage.stage.cursor, stage.stage.player.playing]") == [5, False]
    assert frame.evaluate("window.hacked") is None and page.evaluate("window.hacked") is None
    assert inside.locator("img, h1, a[href]").count() == 0 and page.locator("img, a[href]").count() == 0
    assert frame.evaluate("(() => { try { return String(parent.document.title); } catch (error) { return error.name; } })()") == (
        "SecurityError"
    )
