"""The race above the stage: under way as the page opens, honest about what is not known, and out of the way when it is closed."""

from contextlib import closing

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.trace import metrics
from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages import stage as stage_page
from tests.support.pages.app import AppPage, served
from tests.support.traces.samples import sample_trace

pytestmark = pytest.mark.browser

RACE = "document.querySelector('#sp-stage').closest('.sp-front').querySelector('.sv-race')"
"""Milliseconds a token of a baseline in a race that a test sees to its end."""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with served(app(tmp_path_factory.mktemp("app"), FakeEngine(pace=0.1))) as found:
        yield found


def race(visitor):
    """The race of the tab that is open."""
    return visitor.page.locator(".sv-race:visible")


def lanes(visitor):
    return race(visitor).locator(".sv-lane")


def test_the_page_opens_with_a_race_under_way_and_then_the_stage_starts(visitor):
    visitor.until(f"{RACE}.querySelectorAll('.sv-lane').length === 2")
    assert not visitor.run("player.playing") and visitor.run("cursor") == 0
    box, tree = race(visitor).bounding_box(), visitor.page.locator("#sp-stage .sv-tree-card").bounding_box()
    assert box["height"] <= 125 and tree and tree["height"] >= 150
    expect(visitor.page.locator("#sp-stage .sv-transport")).to_be_in_viewport(ratio=1)
    expect(race(visitor).locator("p").first).to_contain_text("Speculative decoding: a drafter guesses a tree of tokens")
    expect(lanes(visitor).locator(".sv-lane-name")).to_have_text(["Token recycling", "Autoregressive"])
    trace = sample_trace(16)
    seconds = [sum(step.time.total for step in trace.steps) / 1e9, trace.end.baseline.total_ns / 1e9]
    expect(lanes(visitor).locator(".sv-lane-clock")).to_have_text([f"{one:.2f} s" for one in seconds])
    expect(lanes(visitor).locator(".sv-lane-result")).to_contain_text(["1st · ", "2nd"])
    found = metrics.compared_speed(trace)
    speedup = f"{found.speedup:.2f}×"
    expect(lanes(visitor).first).to_contain_text(f"{speedup} as fast")
    expect(race(visitor).locator(".sv-race-verdict")).to_contain_text(f"{speedup} as fast as one at a time")
    texts = lanes(visitor).locator(".sv-lane-text").all_text_contents()
    written = trace.end.text.replace("\n\n", "\n").replace("\n", "⏎ ")
    assert texts[0] == texts[1] and texts[0].replace(" ", "") == written.replace(" ", "")
    expect(race(visitor).get_by_role("button", name="Race", exact=True)).to_be_visible()
    visitor.until(f"{RACE}.hasAttribute('data-told')")
    visitor.until(f"{visitor.stage()}.player.playing")


@pytest.mark.parametrize(("asked", "cursor"), [("go(3)", 3), ("player.pause()", 0)])
def test_whoever_moves_or_pauses_the_stage_meanwhile_is_left_alone(newcomer, asked, cursor):
    """Sharing its step pauses it, and would otherwise name another step than it shows."""
    newcomer.until(f"{RACE}.querySelectorAll('.sv-lane').length === 2")
    newcomer.run(asked)
    newcomer.until(f"{RACE}.hasAttribute('data-over')")
    assert newcomer.run("cursor") == cursor and not newcomer.run("player.playing")


def test_compare_races_both_runs_and_both_baselines_once_it_is_asked(newcomer):
    newcomer.tab("Compare")
    race(newcomer).get_by_role("button", name="Show the race").click()
    expect(lanes(newcomer)).to_have_count(4)
    names = lanes(newcomer).locator(".sv-lane-name").all_inner_texts()
    assert [one.startswith("AR beside ") for one in names] == [False, False, True, True]
    for lane in range(4):
        expect(lanes(newcomer).nth(lane).locator(".sv-lane-result")).not_to_be_empty()


def test_a_closed_race_stays_closed_and_its_sentence_stays(visitor):
    race(visitor).get_by_role("button", name="Hide the race").click()
    expect(lanes(visitor).locator("visible=true")).to_have_count(0)
    visitor.page.reload()
    visitor.until(f"{visitor.stage()}.cursor >= 0")
    expect(race(visitor).get_by_role("button", name="Show the race")).to_be_visible()
    expect(race(visitor).locator("p").first).to_be_visible()
    assert lanes(visitor).locator("visible=true").count() == 0
    race(visitor).get_by_role("button", name="Show the race").press("Enter")
    expect(lanes(visitor).first).to_contain_text("1st")


def test_whoever_wants_less_motion_sees_how_it_ended(browser, url):
    with closing(AppPage(browser, url, reduced_motion="reduce")) as calm:
        expect(lanes(calm).locator(".sv-lane-result")).to_contain_text(["1st", "2nd"])
        expect(race(calm).locator(".sv-race-verdict")).to_be_visible()
        expect(race(calm).get_by_role("button", name="Race", exact=True)).to_be_visible()


def test_on_a_phone_the_lanes_leave_room_for_the_tree_and_buttons_fit_a_finger(browser, url):
    with closing(AppPage(browser, url, new=True, viewport=stage_page.PHONE, has_touch=True)) as phone:
        race(phone).get_by_role("button", name="Run your own").tap()
        expect(race(phone).locator(".sv-race-verdict")).to_be_visible()
        expect(lanes(phone).locator("visible=true")).to_have_count(0)
        race(phone).get_by_role("button", name="Show the race").tap()
        expect(lanes(phone)).to_have_count(2)
        first, second = (lanes(phone).nth(at).bounding_box() for at in (0, 1))
        assert second["y"] == first["y"] and second["x"] >= first["x"] + first["width"]
        assert first["height"] <= 60
        pause = race(phone).get_by_role("button", name="Back to the start").bounding_box()
        assert pause["height"] >= 44 and pause["width"] >= 44
        expect(race(phone).locator(".sv-race-verdict")).to_be_visible()


def test_a_live_run_has_no_race_until_it_is_over_and_then_ends_on_its_verdict(visitor):
    visitor.button("Run live").click()
    visitor.until(f"{visitor.stage()}.running")
    expect(race(visitor).locator(".sv-lane")).to_have_count(0)
    visitor.until(f"{visitor.stage()}.trace.end && {visitor.stage()}.trace.end.baseline")
    expect(lanes(visitor)).to_have_count(2)
    expect(race(visitor).locator(".sv-race-verdict")).to_contain_text("as one at a time")
    expect(lanes(visitor).first.locator(".sv-lane-clock")).not_to_have_text("0.00 s")
    expect(race(visitor).get_by_role("button", name="Race", exact=True)).to_be_visible()
