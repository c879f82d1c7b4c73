"""The stage inside a real Gradio page: told of a run, following it, never mounted anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("playwright")
gr = pytest.importorskip("gradio")

from playwright.sync_api import Browser, Page, expect  # noqa: E402

from specviz.viewer.component import Stage  # noqa: E402
from tests.support.pages import stage as stage_page  # noqa: E402
from tests.support.traces.samples import lines, sample_trace  # noqa: E402

pytestmark = pytest.mark.browser

LINES = lines(sample_trace(60, method="stand"))
HANDLE = "document.querySelector('.specviz-host').specviz"


def control(**more: Any) -> str:
    return json.dumps({"kind": "stage", "mode": "live", "run": "key", **more}) + "\n"


TAIL = """() => { window.specvizTail = (path, run, from, take, over) => {
  const lines = JSON.parse(document.title);
  let at = from;
  const timer = setInterval(() => {
    if (at < lines.length) take(lines[at++]); else { clearInterval(timer); over(""); }
  }, 5);
  return () => clearInterval(timer);
}; }"""
"""The page's way of the lines, which are in its title."""


def stream() -> Iterator[str]:
    """The run as a page is told of it."""
    yield control(message="Loading")
    yield control(follow=True)
    yield control(follow=True, baseline="being timed")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with gr.Blocks(title=json.dumps(LINES)) as app:
        start = gr.Button("Run live")
        stage = Stage("".join(line + "\n" for line in LINES[:8]), tail="lines")
        start.click(stream, outputs=stage, show_progress="hidden")
    _, url, _ = app.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", js=TAIL)
    yield url
    app.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    opened = stage_page.patient(browser.new_context(viewport=stage_page.PROJECTOR).new_page())
    outside: list[str] = []
    opened.on("request", lambda one: None if one.url.startswith((address, "data:", "blob:")) else outside.append(one.url))
    opened.goto(address)
    expect(opened.locator(".sv-tree [data-id]").first).to_be_visible()
    yield opened
    opened.context.close()
    assert outside == []


def test_a_followed_run_arrives_whole_in_the_same_stage(page: Page) -> None:
    page.evaluate("window.before = document.querySelector('.specviz')")
    page.get_by_role("button", name="Run live").click()
    expect(page.locator(".sv-tree-card .sv-card-title")).to_contain_text("Step 60 of 60")
    assert page.evaluate("before === document.querySelector('.specviz')") is True
    assert page.evaluate(f"{HANDLE}.stage.trace.problems") == []
    assert page.evaluate(f"{HANDLE}.stage.trace.steps.map((step) => step.index)") == list(range(60))
    assert page.locator(".specviz").count() == 1


def test_dark_mode_follows_the_page_around_it(page: Page) -> None:
    colour = "getComputedStyle(document.querySelector('.specviz')).backgroundColor"
    light = page.evaluate(colour)
    page.evaluate("document.body.classList.add('dark')")
    assert page.evaluate(colour) != light
