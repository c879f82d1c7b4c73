"""The story in the browser: the offer to a first visitor, a figure that follows the chapters, keys, links, and its doors."""

import os
from contextlib import closing

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages.app import AppPage, served
from tests.support.pages.stage import PHONE

pytestmark = pytest.mark.browser

FIGURES = ("lane", "odds", "journey", "wide", "draft", "verify", "judge", "commit", "bill", "bill")
SCRIPTS = "[...document.scripts].filter((one) => one.src.includes('/specviz/viewer/')).length"
OUTLINE = """() => [...document.querySelectorAll("h1, h2, h3, h4")].filter((one) => one.getClientRects().length)
  .map((one) => Number(one.tagName[1]))"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with served(app(tmp_path_factory.mktemp("app"), FakeEngine())) as found:
        yield found


def at_chapter(page, number):
    """Wait until a chapter is the current one, and its figure is shown."""
    expect(page.page.locator(".sst-nav [aria-current=step]")).to_contain_text(str(number))
    expect(page.page.locator(".sst-figure")).to_have_attribute("data-figure", FIGURES[number - 1])
    page.until(f"new URL(location.href).searchParams.get('story') === '{number}'")


@pytest.fixture
def reader(browser, url):
    with closing(AppPage(browser, url, "?tab=story", reduced_motion="reduce")) as found:
        at_chapter(found, 1)
        yield found


def test_a_first_visitor_is_offered_the_story_and_a_returning_one_finds_it_in_its_tab(browser, url):
    with closing(AppPage(browser, url, new=True)) as page:
        offer = page.page.locator(".sp-offer").first
        expect(offer).to_be_visible()
        expect(page.page.locator("#sp-stage .sv-play")).to_be_visible()
        assert page.page.evaluate(SCRIPTS) == 1, "its script is fetched when it is opened"
        controls = page.page.locator("#sp-method, #sp-run-live")
        for control in controls.all():
            expect(control).to_be_hidden()
        page.button("Run your own").click()
        expect(offer).to_be_hidden()
        for control in controls.all():
            expect(control).to_be_visible()
        expect(page.page.get_by_role("tab", name="Text", exact=True)).to_be_focused()
        page.page.goto(url)
        page.until(f"{page.stage()}.trace.steps.length > 0")
        expect(page.page.locator(".sv-race p").first).to_contain_text("Speculative decoding")
        expect(offer).to_be_hidden()
        page.tab("Story")
        at_chapter(page, 1)
        assert page.page.evaluate(SCRIPTS) == 2


def test_the_offer_opens_the_story_and_a_link_brings_no_offer(browser, url):
    with closing(AppPage(browser, url, new=True)) as page:
        page.page.get_by_role("link", name="The story in five minutes").click()
        at_chapter(page, 1)
        page.tab("Text")
        expect(page.page.locator(".sp-offer").first).to_be_hidden()
        page.until("!location.search.includes('story')")
    with closing(AppPage(browser, url, "?trace=eagle2", new=True)) as linked:
        expect(linked.page.locator(".sp-offer").first).to_be_hidden()


def test_the_figure_follows_the_chapters_as_one_scrolls(reader):
    for number in range(2, 11):
        reader.page.evaluate("(at) => document.querySelector(`[data-chapter='${at}']`).scrollIntoView()", number)
        at_chapter(reader, number)
    reader.page.evaluate("scrollTo(0, 0)")
    at_chapter(reader, 1)


def test_the_stage_is_driven_to_the_phase_of_each_chapter(reader):
    page = reader.page
    seen = {}
    for number, name in ((5, "draft"), (6, "verify"), (7, "judge"), (8, "commit")):
        page.locator(".sst-nav a").nth(number - 1).click()
        at_chapter(reader, number)
        page.wait_for_timeout(150)
        seen[name] = {
            kind: page.locator(f".sst-stage .sv-tree .sv-node.sv-is-{kind}").count() for kind in ("accepted", "rejected", "bonus")
        }
        said = page.locator(".sst-stage .sv-tree").get_attribute("aria-label")
        wanted = {"draft": "22 of 328", "verify": "one pass over 22", "judge": "verdict 8 of 8", "commit": "4 of 22 accepted"}
        assert wanted[name] in said, name
    assert seen["commit"]["accepted"] == 4 and seen["commit"]["bonus"] == 1
    assert seen["commit"]["rejected"] == 4, "two after the last kept guess, two on the way"


def test_keys_go_from_chapter_to_chapter_and_leave_controls_their_own(reader):
    page = reader.page
    page.locator(".sst").focus()
    for number, key in ((2, "Space"), (3, "PageDown"), (4, "ArrowRight"), (3, "PageUp"), (2, "ArrowLeft"), (1, "Shift+Space")):
        page.keyboard.press(key)
        at_chapter(reader, number)
        expect(page.locator(f"[data-chapter='{number}'] h3")).to_be_focused()
    page.locator(".sst-nav a").nth(6).focus()
    page.keyboard.press("Enter")
    at_chapter(reader, 7)
    page.get_by_role("link", name="drop the coins").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".svp-nav [aria-current=true]")).to_have_text("One token")
    reader.tab("Story")
    at_chapter(reader, 7)


def test_a_link_opens_a_chapter_alone_or_with_its_tab(browser, url):
    for query, number in (("?story=3", 3), ("?tab=story&story=8", 8), ("?tab=story&story=99", 10), ("?tab=story&story=x", 1)):
        with closing(AppPage(browser, url, query, reduced_motion="reduce")) as linked:
            at_chapter(linked, number)


def test_the_figure_moves_until_it_is_told_not_to(browser, url):
    with closing(AppPage(browser, url, "?story=1")) as page:
        clock = page.page.locator(".sst-figure .sv-lane-clock").first
        expect(page.button("Skip")).to_be_visible()
        before = clock.inner_text()
        page.until(f"document.querySelector('.sst-figure .sv-lane-clock').textContent !== '{before}'")
        page.button("Skip").click()
        expect(clock).to_have_text("2.25 s")
        page.button("Again").click()
        expect(page.button("Skip")).to_be_visible()
        assert page.page.locator(".sst [role=status]:not([aria-live=off])").count() == 0, "it announces nothing by itself"


def test_its_doors_lead_to_the_run_and_to_one_s_own_prompt(reader):
    page = reader.page
    page.locator(".sst-nav a").nth(9).click()
    at_chapter(reader, 10)
    page.get_by_role("link", name="Run your own prompt").click()
    expect(page.get_by_role("tab", name="Text", exact=True)).to_have_attribute("aria-selected", "true")
    expect(page.locator("#sp-prompt textarea")).to_be_focused()
    doors = {"Play with the odds": "Play", "Take the lessons": "Learn", "See the papers": "Methods", "Watch a run": "Text"}
    for door, tab in doors.items():
        reader.tab("Story")
        page.get_by_role("link", name=door).click()
        expect(page.get_by_role("tab", name=tab, exact=True)).to_have_attribute("aria-selected", "true")


def test_on_a_phone_the_figure_stays_above_the_text(browser, url):
    with closing(
        AppPage(browser, url, "?story=2", viewport=PHONE, has_touch=True, is_mobile=True, reduced_motion="reduce")
    ) as phone:
        for number in (2, 4, 6, 8, 9):
            phone.page.locator(".sst-nav a").nth(number - 1).click()
            at_chapter(phone, number)
            figure = phone.page.locator(".sst-figure").bounding_box()
            heading = phone.page.locator(f"[data-chapter='{number}'] h3")
            phone.until(
                f"document.querySelector(\"[data-chapter='{number}'] h3\").getBoundingClientRect().top < {PHONE['height']}"
            )
            box = heading.bounding_box()
            assert figure["y"] <= 60, number
            assert figure["y"] + figure["height"] <= box["y"], number
            inside = "(one) => one.scrollHeight <= one.clientHeight + 1 && one.scrollWidth <= one.clientWidth + 1"
            assert phone.page.locator(".sst-plate").evaluate(inside), f"figure {number} fits"
        assert phone.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_headings_are_in_order_and_axe_finds_nothing(browser, url):
    axe = os.environ.get("AXE_JS", "")
    for scheme in ("light", "dark"):
        with closing(AppPage(browser, url, "?story=1", color_scheme=scheme, reduced_motion="reduce")) as page:
            for number in (1, 3, 7, 10):
                page.page.locator(".sst-nav a").nth(number - 1).click()
                at_chapter(page, number)
                levels = page.page.evaluate(OUTLINE)
                assert levels[:2] == [1, 2] and all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False)), levels
                if axe:
                    page.page.add_script_tag(path=axe)
                    found = page.page.evaluate("axe.run('.sst', { resultTypes: ['violations'] })")["violations"]
                    told = [(one["id"], [node["html"][:160] for node in one["nodes"]]) for one in found]
                    assert told == [], f"{scheme}, chapter {number}"
