"""The page in a browser in half a minute: a recorded run plays, its tree is drawn, a live run streams."""

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages.app import served

DRAWN = "document.querySelectorAll('#sp-stage .sv-tree [data-id]').length"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with served(app(tmp_path_factory.mktemp("app"), FakeEngine(steps=12, pace=0.05))) as found:
        yield found


def test_a_recorded_run_plays_by_itself_and_each_step_s_tree_is_drawn(visitor):
    visitor.until(f"{visitor.stage()}.cursor >= 2")
    expect(visitor.page.locator("#sp-stage .sv-badge", has_text="recorded")).to_be_visible()
    for step in (0, 5, 9):
        visitor.page.evaluate(f"{visitor.stage()}.player.pause(); {visitor.stage()}.go({step})")
        nodes = f"{visitor.stage()}.step.nodes.length + Number(Boolean({visitor.stage()}.step.bonus))"
        visitor.until(f"{visitor.stage()}.cursor === {step} && {DRAWN} === {nodes}")
        assert visitor.page.evaluate(nodes) > 1


def test_a_live_run_streams_into_the_same_stage(visitor):
    visitor.page.evaluate("window.host = document.querySelector('#sp-stage .specviz')")
    visitor.button("Run live").click()
    visitor.until(
        f"{visitor.stage()}.trace.mode === 'live' && {visitor.stage()}.trace.end && {visitor.stage()}.trace.end.baseline"
    )
    assert visitor.run("trace.steps.length") == 12 and visitor.run("trace.problems") == []
    assert visitor.page.evaluate("window.host === document.querySelector('#sp-stage .specviz')"), "mounted anew"
    expect(visitor.page.locator(".sp-why")).to_contain_text("measured")
