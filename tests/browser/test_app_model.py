"""The real thing: SmolLM2 decodes in the app while a browser watches."""

from contextlib import closing

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.models import device
from specviz.ui.app_state import make
from specviz.ui.settings import Settings
from tests.support.fakes.ui import gallery
from tests.support.pages.app import AppPage, served

pytestmark = [pytest.mark.browser, pytest.mark.model]


@pytest.fixture
def in_float32(monkeypatch):
    """Token for token is claimed in float32; a processor made for bfloat16 would compute in that."""
    monkeypatch.setattr(device, "cpu_has_bfloat16", lambda: False)


def test_a_live_run_of_the_default_model_streams_and_is_compared(browser, tmp_path, in_float32):
    shared = make(Settings(traces=gallery(tmp_path, ("prompt_lookup",))))
    with served(shared) as url, closing(AppPage(browser, url)) as visitor:
        visitor.page.locator("#sp-prompt textarea").fill("Repeat exactly: one two three four five six seven eight")
        visitor.page.locator("#sp-basics").get_by_label("New tokens").fill("24")
        visitor.page.evaluate("window.host = document.querySelector('#sp-stage .specviz')")
        visitor.button("Run live").click()
        visitor.until(f"{visitor.stage()}.trace.mode === 'live' && {visitor.stage()}.trace.steps.length > 0", 240)
        visitor.until(f"{visitor.stage()}.trace.end && {visitor.stage()}.trace.end.baseline", 240)
        assert visitor.run("trace.run.dtype") == "float32"
        assert visitor.run("trace.end.baseline.equal"), "the autoregressive run wrote something else"
        assert visitor.page.evaluate("window.host === document.querySelector('#sp-stage .specviz')")
        expect(visitor.page.locator("#sp-stage")).to_contain_text("three")
        expect(visitor.page.locator(".sp-why")).to_contain_text("measured")
