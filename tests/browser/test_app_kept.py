"""A page that is reloaded keeps its form and its run, and a run whose server is gone says so."""

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages.app import served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with served(app(tmp_path_factory.mktemp("app"), FakeEngine(steps=1500, pace=0.05))) as found:
        yield found


def begin(visitor):
    """Ask for something of one's own, and wait for its first steps."""
    visitor.page.locator("#sp-prompt textarea").fill("A prompt of my own.")
    visitor.page.locator("#sp-basics").get_by_label("New tokens").fill("77")
    visitor.page.locator("#sp-basics").get_by_label("New tokens").blur()
    visitor.button("Run live").click()
    visitor.until(f"{visitor.stage()}.trace.mode === 'live' && {visitor.stage()}.trace.steps.length >= 3")


def test_a_reload_keeps_the_form_and_the_steps_and_a_link_does_not(newcomer):
    begin(newcomer)
    kept = newcomer.run("trace.steps.length")
    newcomer.page.reload()
    newcomer.until(f"{newcomer.stage()}.feed.name.startsWith('mine:')")
    assert newcomer.run("trace.steps.length") >= kept and newcomer.run("trace.end.reason") == "cancelled"
    expect(newcomer.page.locator("#sp-stage .sv-banner")).to_contain_text("The run was stopped")
    expect(newcomer.page.locator("#sp-prompt textarea")).to_have_value("A prompt of my own.")
    expect(newcomer.page.locator("#sp-basics").get_by_label("New tokens")).to_have_value("77")
    assert any("A prompt of my own" in option or "Explain" in option for option in newcomer.options("#sp-recording"))
    newcomer.page.goto(f"{newcomer.url}?trace=stand")
    newcomer.until(f"{newcomer.stage()}.feed.name === 'stand'")
    expect(newcomer.page.locator("#sp-prompt textarea")).not_to_have_value("A prompt of my own.")
    begin(newcomer)
    newcomer.page.reload()
    newcomer.until(f"{newcomer.stage()}.feed.name.startsWith('mine:')")
    newcomer.until("!new URL(location.href).searchParams.has('trace')")
    newcomer.errors.clear()  # Gradio's own, of the answers that a reload cuts off


def test_a_run_whose_server_does_not_answer_says_so_until_it_does(newcomer):
    begin(newcomer)
    error = newcomer.page.locator("#sp-stage .sv-banner.sv-error")
    newcomer.context.set_offline(True)
    expect(error).to_contain_text("The server no longer answers")
    assert newcomer.run("running") is False and newcomer.run("trace.steps.length") >= 3
    newcomer.context.set_offline(False)
    newcomer.until(f"{newcomer.stage()}.running || {newcomer.stage()}.feed.name.startsWith('mine:')")
    expect(error).to_have_count(0)
    newcomer.errors.clear()  # the browser's own, of what it could not load
