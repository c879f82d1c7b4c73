"""Live runs in the browser: they stream into a stage that stays, stop at once, fail loudly, and belong to one visitor."""

from contextlib import closing
from dataclasses import dataclass

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.ui.app_state import AppState
from tests.support.fakes import chat_server
from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages.app import AppPage, served

pytestmark = pytest.mark.browser

GIVEN = """() => {
  const handle = document.querySelector("#sp-stage .specviz-host").specviz, update = handle.update;
  window.given = [];
  handle.update = (text) => { window.given.push(text); update(text); };
}"""
"""Keeps every text that the stage is given."""


@dataclass
class Running:
    """The app while it runs, and the engine behind it."""

    url: str
    shared: AppState
    engine: FakeEngine


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    engine = FakeEngine()
    shared = app(tmp_path_factory.mktemp("app"), engine, max_waiting=1)
    with served(shared) as url:
        yield Running(url, shared, engine)


@pytest.fixture
def running(serving):
    """The same app for every test, its engine as new before and idle after it."""
    vars(serving.engine).update(vars(FakeEngine(steps=40, pace=0.05)))
    yield serving
    ticket = serving.shared.live.queue.join()
    assert ticket.wait(60), "a run of this test never ended"
    ticket.leave()


@pytest.fixture(scope="module")
def url(serving):
    return serving.url


def steps(visitor):
    return int(visitor.run("trace.steps.length"))


def begin(visitor, at_least=2):
    """Run live and wait for the first steps."""
    visitor.button("Run live").click()
    visitor.until(f"{visitor.stage()}.running && {visitor.stage()}.trace.steps.length >= {at_least}")


def click_until(visitor, seen):
    """Gradio drops a click until it has taken in the end of a refusal, which the page shows a little earlier."""
    visitor.until(f"{seen} || document.querySelector('#sp-run-live').click()")


def test_bad_input_is_said_above_a_stage_that_stays(visitor, running):
    visitor.page.locator("#sp-prompt textarea").fill("   ")
    visitor.button("Run live").click()
    expect(visitor.page.locator(".sp-say-error")).to_contain_text("The prompt is empty")
    assert visitor.run("trace.mode") == "recorded" and steps(visitor) == 16
    visitor.page.locator("#sp-prompt textarea").fill("Say something.")
    visitor.page.locator("#sp-basics").get_by_label("Temperature").fill("9")
    click_until(visitor, "document.querySelector('.sp-say-error')?.innerText.includes('Temperature is 9')")
    visitor.page.locator("#sp-basics").get_by_label("Temperature").fill("0.5")
    click_until(visitor, f"{visitor.stage()}.trace.mode === 'live'")
    expect(visitor.page.locator(".sp-say-error")).to_have_count(0)


def test_lines_come_one_way_and_that_goes_on_after_a_break(visitor, running):
    asked = []
    running.engine.pace = 0.1
    visitor.page.route("**/specviz/tail/**", lambda one: (asked.append(one.request.url), refuse(one, len(asked)))[1])
    visitor.page.evaluate(
        "window.seen = new Set(); setInterval(() => window.seen.add(" + visitor.stage() + ".trace.steps.length), 20)"
    )
    visitor.page.evaluate(GIVEN)
    begin(visitor)
    visitor.until(f"{visitor.stage()}.trace.end && {visitor.stage()}.trace.end.baseline")
    assert steps(visitor) == 40 and visitor.run("trace.problems") == [] and len(asked) >= 2
    assert visitor.page.evaluate("window.seen.size") >= 8, "steps came in lumps"
    visitor.errors.clear()  # the browser's own, of the answer that was refused
    given = visitor.page.evaluate("window.given")
    assert any('"follow":true' in text for text in given)
    assert not any('"kind":"step"' in text for text in given), "the page was given the lines as a text too"


def refuse(one, count):
    """Answer the first request as a proxy does whose server is away."""
    if count == 1:
        one.fulfill(status=502)
    else:
        one.continue_()


def test_two_visitors_never_see_each_other_s_runs(visitor, newcomer, running):
    one, two = visitor, newcomer
    one.page.locator("#sp-prompt textarea").fill("Say something.")
    begin(one)
    one.until(f"{one.stage()}.trace.end && {one.stage()}.trace.end.baseline")
    assert two.run("trace.mode") == "recorded"
    assert any("Say something." in option for option in one.options("#sp-recording"))
    assert not any("Say something." in option for option in two.options("#sp-recording"))
    begin(two)
    two.until(f"{two.stage()}.trace.end")
    assert one.run("feed.name") != two.run("feed.name")


def test_a_second_visitor_waits_and_a_third_is_told_to_come_back(browser, visitor, newcomer, running):
    running.engine.steps = 400
    one, two = visitor, newcomer
    with closing(AppPage(browser, running.url)) as three:
        begin(one)
        two.button("Run live").click()
        expect(two.page.locator("#sp-stage")).to_contain_text("1 run is ahead of yours")
        three.button("Run live").click()
        expect(three.page.locator(".sp-say-error")).to_contain_text("Try again")
        assert three.run("trace.mode") == "recorded"
        running.engine.steps = 5
        one.button("Stop").click()
        two.until(f"{two.stage()}.trace.end && {two.stage()}.trace.steps.length === 5")


def test_closing_the_page_ends_its_run(browser, visitor, running):
    running.engine.steps, stays = 400, visitor
    leaves = AppPage(browser, running.url)
    begin(leaves)
    leaves.close()
    running.engine.steps = 5
    stays.button("Run live").click()
    stays.until(f"{stays.stage()}.trace.end && {stays.stage()}.trace.steps.length === 5")
    assert running.engine.cancelled == 1 and running.engine.most_running == 1


def test_the_pasted_address_of_an_allowed_server_is_watched_as_it_answers(browser, tmp_path):
    counts = [(0, 0), (0, 0), (3, 2), (3, 2), (3, 2), (3, 2), (7, 3), (7, 3), (9, 3), (9, 3)]
    events = [
        chat_server.piece([at], "stop" if at == 9 else None, timings={"draft_n": drafted, "draft_n_accepted": kept})
        for at, (drafted, kept) in enumerate(counts)
    ]
    script = chat_server.Script(events, owner="llamacpp", pause=0.4)
    with (
        chat_server.serving(script) as server,
        served(app(tmp_path, servers=(server,), any_model=True)) as url,
        closing(AppPage(browser, url)) as visitor,
    ):
        visitor.page.locator("#sp-target input").fill(f" {server}/v1/ ")
        visitor.page.locator("#sp-target input").press("Enter")
        visitor.page.locator("#sp-prompt textarea").fill("Why is the sky blue?")
        visitor.page.evaluate(
            "window.seen = new Set(); setInterval(() => window.seen.add(" + visitor.stage() + ".trace.steps.length), 20)"
        )
        begin(visitor, 1)
        visitor.until(f"{visitor.stage()}.trace.end")
        assert visitor.page.evaluate("window.seen.size") >= 5, "rounds came in lumps"
        assert visitor.run("trace.steps.map((step) => step.emitted.length)") == [1, 1, 3, 1, 2, 1, 2]
        expect(visitor.page.locator("#sp-stage")).to_contain_text("Served by llama.cpp")
        expect(visitor.page.locator("#sp-stage")).to_contain_text("3 of 9 drafted tokens accepted")
        assert script.asked[0]["messages"][0]["content"] == "Why is the sky blue?"
        visitor.page.locator("#sp-target input").fill("http://127.0.0.1:9")
        visitor.page.locator("#sp-target input").press("Enter")
        click_until(visitor, "document.querySelector('.sp-say-error')?.innerText.includes('SPECVIZ_SERVERS')")
