"""A page that is loaded anew keeps its form and its run, and a run whose server is gone says so."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from PIL import Image
from playwright.sync_api import Browser, expect

from specviz.ui.settings import Settings
from specviz.ui.tabs import request_form
from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages.app import AppPage, served

pytestmark = pytest.mark.browser

DRAFT = {name: title for title, name in request_form.models("draft", Settings())}["smollm2-360m-instruct"]


def begin(visitor: AppPage) -> None:
    """Ask for something of one's own, and wait for its first steps."""
    visitor.page.locator("#sp-prompt textarea").fill("A prompt of my own.")
    visitor.page.locator("#sp-basics").get_by_label("New tokens").fill("77")
    visitor.page.locator("#sp-basics").get_by_label("New tokens").blur()
    visitor.button("Run live").click()
    visitor.until(f"{visitor.stage()}.trace.mode === 'live' && {visitor.stage()}.trace.steps.length >= 3")


def test_a_reload_keeps_the_form_and_the_steps_and_a_link_does_not(browser: Browser, tmp_path: Path) -> None:
    with served(app(tmp_path, FakeEngine(steps=1500, pace=0.05))) as url, closing(AppPage(browser, url)) as visitor:
        begin(visitor)
        kept = visitor.run("trace.steps.length")
        visitor.page.reload()
        visitor.until(f"{visitor.stage()}.feed.name.startsWith('mine:')")
        assert visitor.run("trace.steps.length") >= kept and visitor.run("trace.end.reason") == "cancelled"
        expect(visitor.page.locator("#sp-stage .sv-banner")).to_contain_text("The run was stopped")
        expect(visitor.page.locator("#sp-prompt textarea")).to_have_value("A prompt of my own.")
        expect(visitor.page.locator("#sp-basics").get_by_label("New tokens")).to_have_value("77")
        assert any("A prompt of my own" in option or "Explain" in option for option in visitor.options("#sp-recording"))
        visitor.page.goto(f"{url}?trace=stand")
        visitor.until(f"{visitor.stage()}.feed.name === 'stand'")
        expect(visitor.page.locator("#sp-prompt textarea")).not_to_have_value("A prompt of my own.")
        begin(visitor)
        visitor.page.reload()
        visitor.until(f"{visitor.stage()}.feed.name.startsWith('mine:')")
        visitor.until("!new URL(location.href).searchParams.has('trace')")
        visitor.errors.clear()  # Gradio's own, of the answers that a reload cuts off


def test_a_reload_keeps_the_uploaded_picture_and_the_draft_model(browser: Browser, tmp_path: Path) -> None:
    Image.effect_noise((900, 900), 90).convert("RGB").save(tmp_path / "photo.png")
    with served(app(tmp_path)) as url, closing(AppPage(browser, url)) as visitor:
        visitor.pick("#sp-method", "Speculative sampling")
        expect(visitor.page.locator("#sp-draft input")).to_be_visible()
        visitor.choose("#sp-draft", DRAFT)
        visitor.tab("Vision-language")
        preview = visitor.page.locator("#sp-see-preview img")
        visitor.page.locator("input[type=file][accept*='.png']").first.set_input_files(tmp_path / "photo.png")
        expect(preview).to_have_attribute("src", re.compile("^data:image/jpeg"))
        shown = preview.get_attribute("src")
        visitor.page.reload()
        expect(preview).to_have_attribute("src", str(shown))
        visitor.tab("Text")
        expect(visitor.page.locator("#sp-draft input")).to_have_value(DRAFT)
        visitor.errors.clear()  # Gradio's own, of the answers that a reload cuts off


def test_a_run_whose_server_does_not_answer_says_so_until_it_does(browser: Browser, tmp_path: Path) -> None:
    with served(app(tmp_path, FakeEngine(steps=1500, pace=0.05))) as url, closing(AppPage(browser, url)) as visitor:
        begin(visitor)
        error = visitor.page.locator("#sp-stage .sv-banner.sv-error")
        visitor.context.set_offline(True)
        expect(error).to_contain_text("The server no longer answers")
        assert visitor.run("running") is False and visitor.run("trace.steps.length") >= 3
        visitor.context.set_offline(False)
        visitor.until(f"{visitor.stage()}.running || {visitor.stage()}.feed.name.startsWith('mine:')")
        expect(error).to_have_count(0)
        visitor.errors.clear()  # the browser's own, of what it could not load
