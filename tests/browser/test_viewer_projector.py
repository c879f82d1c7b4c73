"""Projector mode: type for the last row, few panes, keys alone, and everything as it was afterwards."""

from pathlib import Path

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from specviz.trace import store
from tests.support.pages.stage import PROJECTOR
from tests.support.viewer import cases

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
LARGE = {"width": 1920, "height": 1080}
PARTS = [".sv-tree text", ".sv-strip .sv-token", ".sv-ending", ".sv-phase-label", ".sv-tree-card .sv-card-title"]
# Pixels of the smallest text of each part of the stage.
SIZES = """(parts) => Object.fromEntries(parts.map((name) => [name, Math.min(...[...document.querySelectorAll(name)].map((one) =>
  Number(one.getAttribute("font-size")) || parseFloat(getComputedStyle(one).fontSize)))]))"""
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))"
SETTLED = "document.querySelector('.specviz').getBoundingClientRect().height >= innerHeight - 1"


def project(tab):
    tab.page.locator(".specviz").focus()
    tab.page.keyboard.press("p")
    tab.until(f"stage.stage.projector && {SETTLED}")
    tab.page.wait_for_timeout(150)
    tab.run("stage.flush()")


@pytest.mark.parametrize("size", [PROJECTOR, LARGE])
@pytest.mark.parametrize("make", [cases.bushy, cases.chain])
def test_the_last_row_can_read_all_of_it(show, size, make):
    tab = show(cases.trace(make(0), make(1)), size=size)
    project(tab)
    least = 18 * size["height"] / 720
    sizes = tab.run(SIZES, PARTS)
    assert sizes[".sv-tree text"] >= least
    assert all(value >= 0.98 * least for value in sizes.values()), sizes
    frame = "document.querySelector('.sv-scroll')"
    assert tab.run(f"{frame}.clientHeight") > 0.4 * size["height"]
    for hidden in (".sv-head", ".sv-inspector", ".sv-transport", ".sv-run .sv-card-head"):
        expect(tab.page.locator(hidden)).to_be_hidden()
    assert tab.page.locator(".specviz button:visible").count() == 0
    line = tab.page.locator(".sv-plots").bounding_box()
    assert line["height"] < 0.06 * size["height"]
    expect(tab.page.locator(".sv-tree-card .sv-card-title")).to_contain_text("Step 1 of 2 · Token recycling, recorded")
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")


def test_one_sentence_says_the_verdict_that_has_just_fallen(show):
    tab = show(cases.trace(cases.chain(0, length=4, kept=2), method="speculative_sampling"))
    project(tab)
    sentence = tab.page.locator(".sv-ending")
    expect(sentence).to_contain_text("Stopped after")
    height = "document.querySelector('.sv-scroll').clientHeight"
    before = tab.run(height)
    tab.run("stage.stage.seek(0, 0.2); stage.flush()")
    expect(sentence).to_have_text("")
    tab.run("stage.stage.seek(0, 0.77); stage.flush()")
    expect(sentence).to_contain_text("The draw 0.63 is not below 0.20")
    assert tab.run(height) == before, "the tree stays where it is"
    tab.run("stage.stage.seek(0, 1); stage.flush()")
    tab.page.locator('.sv-tree [data-id="1"]').click()
    tab.run("stage.flush()")
    expect(sentence).not_to_contain_text("Stopped after")


def test_full_screen_comes_with_it_and_escape_gives_back_the_whole_stage(show):
    tab = show(cases.trace(cases.bushy(0), cases.bushy(1)))
    picture = "document.querySelector('.sv-tree').outerHTML"
    tab.run(DRAWN)
    usual = tab.run(picture)
    tab.page.get_by_role("button", name="Projector mode").click()
    tab.until("document.fullscreenElement === document.querySelector('.specviz') && stage.stage.projector")
    assert tab.run("document.activeElement === stage.stage.root"), "the keys are heard"
    tab.page.keyboard.press("Escape")
    tab.until("!stage.stage.projector && !document.fullscreenElement")
    expect(tab.page.get_by_role("button", name="Play")).to_be_visible()
    tab.until("stage.stage.u === 1 && stage.stage.height === 720")
    tab.run(DRAWN)
    assert tab.run(picture) == usual


def test_where_the_browser_has_no_full_screen_it_fills_the_window(show):
    tab = show(cases.trace(cases.bushy(0)))
    tab.run("() => { stage.stage.root.requestFullscreen = () => Promise.reject(new Error('not here')); }")
    project(tab)
    box = tab.page.locator(".specviz").bounding_box()
    assert box == {"x": 0, "y": 0, "width": 1280, "height": 720}
    tab.page.keyboard.press("Escape")
    tab.until("!stage.stage.projector && !document.querySelector('.sv-full-screen')")


def test_it_is_driven_by_keys_and_tells_them(show):
    tab = show(cases.trace(cases.bushy(0), cases.bushy(1), cases.bushy(2)))
    project(tab)
    tab.page.keyboard.press("ArrowRight")
    assert tab.step() == 1
    keys = tab.page.get_by_role("dialog", name="Keys")
    expect(keys).to_be_hidden()
    tab.page.keyboard.press("?")
    expect(keys).to_contain_text("slow motion: animate each step")
    tab.page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    assert tab.run("stage.stage.projector") is True
    tab.page.keyboard.press("a")
    expect(tab.page.locator(".sv-phase-label")).to_contain_text("Drafting")
    tab.page.keyboard.press("p")
    tab.until("!stage.stage.projector")


def test_a_touch_screen_finds_the_way_out(show):
    tab = show(cases.trace(cases.bushy(0)))
    project(tab)
    tab.page.locator(".sv-keys-hint").click()
    tab.page.get_by_role("button", name="Leave projector mode").click()
    tab.until("!stage.stage.projector && !document.fullscreenElement")
    expect(tab.page.get_by_role("dialog", name="Keys")).to_be_hidden()


def test_a_picture_stays_beside_its_tree(show):
    tab = show(store.unpacked(ROOT / "assets" / "traces" / "mulo_sd.spectrace.jsonl.gz").decode("utf-8"))
    project(tab)
    picture = tab.page.locator(".sv-picture-box").bounding_box()
    tree = tab.page.locator(".sv-scroll").bounding_box()
    assert picture["height"] > 300 and picture["x"] + picture["width"] <= tree["x"]
    assert tab.run(SIZES, PARTS)[".sv-tree text"] >= 18


def test_what_went_wrong_is_still_said(show):
    tab = show(cases.text([cases.run(), cases.chain(0), cases.end(2, "error", "The drafter broke.")]))
    project(tab)
    expect(tab.page.locator(".sv-banner.sv-error")).to_be_visible()
