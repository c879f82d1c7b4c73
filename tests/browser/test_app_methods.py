"""The Methods tab in the browser: lanes to search, sort and zoom, a step that opens on the stage, two trees, a live race."""

import json
import re
from contextlib import closing
from xml.etree import ElementTree

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from PIL import Image, ImageSequence
from playwright.sync_api import expect

from specviz.methods.registry import all_methods
from specviz.ui.app_state import make
from specviz.ui.settings import Settings
from tests.support.fakes.ui import HARDWARE, FakeEngine, gallery, written
from tests.support.pages.app import AppPage, served
from tests.support.pages.stage import PHONE

pytestmark = pytest.mark.browser

RACE = ("prompt_lookup", "speculative_sampling", "stand", "token_recycling")


def shelf(folder):
    """Recorded runs, of which some share a prompt in the folder of the race."""
    gallery(folder)
    (folder / "race").mkdir()
    for name in RACE:
        (folder / "race" / f"{name}.spectrace.jsonl").write_text(written(name), encoding="utf-8")
        (folder / "race" / f"{name}.json").write_text(json.dumps({"title": f"{name} in the race"}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("SPECVIZ_CACHE", str(tmp_path_factory.mktemp("cache")))
    shared = make(Settings(traces=shelf(tmp_path_factory.mktemp("app") / "traces")), FakeEngine(), lambda device: HARDWARE)
    with served(shared) as found:
        yield found
    patch.undo()


@pytest.fixture
def racing(browser, url):
    with closing(AppPage(browser, url, "?tab=methods&methods=clock", reduced_motion="reduce")) as found:
        expect(found.page.locator(".svf-lane")).to_have_count(len(RACE) + 1)
        yield found


def names(racing):
    return racing.page.locator(".svf-lane .svf-name").all_inner_texts()


def ink(racing, lane):
    """Number of coloured pixels of a lane."""
    count = """(one) => one.getContext("2d").getImageData(0, 0, one.width, one.height).data
      .filter((value, at) => at % 4 === 3 && value).length"""
    return int(racing.page.locator(".svf-canvas").nth(lane).evaluate(count))


def test_the_script_and_the_lanes_are_fetched_when_the_tab_is_opened(newcomer):
    page = newcomer.page
    scripts = "[...document.scripts].filter((one) => one.src.includes('/specviz/viewer/')).length"
    assert page.evaluate(scripts) == 1 and page.locator(".svf").count() == 0
    newcomer.tab("Methods")
    expect(page.locator(".svf-map")).to_be_visible()
    page.get_by_role("button", name="One clock", exact=True).click()
    expect(page.locator(".svf-lane")).to_have_count(len(RACE) + 1)
    assert page.evaluate(scripts) == 2


def test_keys_move_the_clock_by_steps_and_go_from_lane_to_lane(racing):
    page, lanes = racing.page, racing.page.locator(".svf-canvas")
    assert page.locator(".svf-canvas[tabindex='0']").count() == 1
    lanes.first.focus()
    page.keyboard.press("Home")
    expect(lanes.first).to_have_attribute("aria-valuenow", "1")
    page.keyboard.press("ArrowRight")
    expect(lanes.first).to_have_attribute("aria-valuetext", re.compile("^Step 2 · "))
    before = page.locator(".svf-time output").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator(".svf-time output").inner_text() != before
    page.keyboard.press("ArrowDown")
    expect(lanes.nth(1)).to_be_focused()
    assert page.locator(".svf-canvas[tabindex='0']").count() == 1
    assert lanes.nth(1).evaluate("(one) => getComputedStyle(one).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Text", exact=True)).to_have_attribute("aria-selected", "true")


def test_lanes_are_labelled_sorted_and_searched(racing):
    page = racing.page
    assert names(racing)[-1] == "One at a time"
    first = page.locator(".svf-lane").first
    assert all(part in first.inner_text() for part in ("×", "τ "))
    assert {"exact", "relaxed"} & set(first.locator(".svf-facts").inner_text().split())
    cited = page.locator(".svf-lane a").first
    assert cited.get_attribute("href") == f"https://arxiv.org/abs/{cited.inner_text()}"
    page.get_by_label("Order of the lanes").select_option("method")
    assert names(racing)[:-1] == sorted(names(racing)[:-1], key=str.lower) and len(set(names(racing))) == 5
    page.get_by_label("Search methods").fill("token recyc")
    assert names(racing) == ["Token recycling", "One at a time"]
    expect(page.locator(".svf h2").first).to_have_text("1 of 4 methods, one prompt, one clock")
    expect(page.locator(".svf-live button")).to_have_text("Race 1 live")


def test_zoom_and_time_change_what_a_lane_shows(racing):
    page = racing.page
    whole = ink(racing, 0)
    assert whole > 100
    for _ in range(4):
        page.get_by_role("button", name="Zoom in").first.click()
    assert ink(racing, 0) > 2 * whole, "a closer look fills the lane"
    page.get_by_role("button", name="Whole", exact=True).click()
    assert ink(racing, 0) == whole
    time = page.get_by_label("Time", exact=True)
    time.focus()
    page.keyboard.press("Home")
    expect(page.locator(".svf-time output")).to_have_text("0.0 µs")
    page.get_by_role("button", name="Race", exact=True).click()
    expect(page.locator(".svf-time output")).not_to_have_text("0.0 µs")


def test_a_click_opens_the_run_on_the_stage_at_that_step(racing):
    page = racing.page
    page.get_by_label("Order of the lanes").select_option("method")
    canvas = page.locator(".svf-canvas").nth(2)
    title = names(racing)[2]
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 9)
    step = int((canvas.get_attribute("title") or "").split()[1])
    assert step > 1
    page.mouse.click(box["x"] + 40, box["y"] + 9)
    racing.until(f"{racing.stage()}.trace.run.title === {json.dumps(title)} && {racing.stage()}.cursor === {step - 1}")
    expect(page.locator("#sp-stage")).to_be_visible()
    racing.until(f"new URL(location.href).searchParams.get('step') === '{step}'")
    assert "trace=race-" in page.url


def test_two_trees_stand_side_by_side_at_one_place_of_the_text(racing):
    page = racing.page
    page.get_by_label("Order of the lanes").select_option("method")
    boxes = page.locator(".svf-lane input")
    boxes.nth(0).focus()
    page.keyboard.press("Space")
    expect(page.locator(".svf-hint")).to_contain_text("second method")
    boxes.nth(1).check()
    expect(page.locator(".svf-side svg.sv-tree")).to_have_count(2)
    assert page.locator(".svf-side h3").all_inner_texts()[0].startswith(names(racing)[0])
    position = page.get_by_label("Position in the text")
    position.fill("9")
    expect(page.locator(".svf-words")).to_contain_text("fter “…")
    titles = page.locator(".svf-side .sv-tree-card .sv-card-title")
    expect(titles.nth(0)).not_to_contain_text("Step 1 ")
    position.fill("0")
    expect(page.locator(".svf-words")).to_have_text("Both draft the first token")
    with closing(AppPage(page.context.browser, racing.url, page.url.removeprefix(racing.url))) as linked:
        expect(linked.page.locator(".svf-side svg.sv-tree")).to_have_count(2)
        pairs = [one.locator(".svf-side > h3").all_inner_texts() for one in (linked.page, page)]
        assert pairs[0] == pairs[1] and len(pairs[0]) == 2
    for at in range(2):
        expect(titles.nth(at)).to_contain_text("Step 1 ")
    boxes.nth(2).check()
    assert [boxes.nth(at).is_checked() for at in range(3)] == [False, True, True], "a third takes the place of the first"
    page.get_by_role("button", name="Close the trees").click()
    expect(page.locator(".svf-pair")).to_be_hidden()


def race_live(page):
    """Race the one method that is in sight, and wait until its lane is there."""
    page.get_by_label("Search methods").fill("lookup")
    page.get_by_label("Prompt", exact=True).locator("visible=true").fill("Say hello.")
    page.get_by_role("button", name="Race 1 live").click()
    expect(page.get_by_label("Runs", exact=True)).to_have_value("live")


def test_a_live_race_of_the_methods_in_sight(racing):
    page = racing.page
    race_live(page)
    expect(page.locator(".svf-live button")).to_have_text("Race 1 live")
    assert names(racing) == ["Prompt lookup", "One at a time"]
    page.get_by_role("button", name="Prompt lookup", exact=True).click()
    racing.until(f"{racing.stage()}.trace.run.prompt === 'Say hello.'")
    racing.tab("Methods")
    page.get_by_label("Runs", exact=True).select_option("recorded")
    page.get_by_label("Search methods").fill("")
    assert len(names(racing)) == len(RACE) + 1


def test_a_link_opens_the_lanes_of_a_live_race(browser, racing):
    page, ways = racing.page, racing.page.locator("#sp-sharing")
    race_live(page)
    racing.button("Share").click()
    expect(ways).to_contain_text("keeps your run, with its prompt")
    ways.get_by_role("button", name="Copy link").click()
    expect(page.locator("#sp-linked")).to_contain_text("kept here until")
    link = ways.get_by_label("Copied text").input_value()
    assert link.startswith(racing.url) and "methods=mine%3A" in link
    with closing(AppPage(browser, racing.url, link.removeprefix(racing.url), reduced_motion="reduce")) as other:
        expect(other.page.get_by_label("Runs", exact=True)).to_have_value("live")
        assert names(other) == ["Prompt lookup", "One at a time"]
        expect(other.page.get_by_label("Prompt", exact=True).locator("visible=true")).to_have_value("Say hello.")
        other.page.get_by_label("Runs", exact=True).select_option("recorded")
        assert len(names(other)) == len(RACE) + 1
        other.page.get_by_label("Runs", exact=True).select_option("live")
        other.page.get_by_role("button", name="Prompt lookup", exact=True).click()
        other.until(f"{other.stage()}.trace.run.prompt === 'Say hello.'")
        other.until("!location.search.includes('methods=')")
    page.keyboard.press("Escape")
    page.get_by_label("Runs", exact=True).select_option("recorded")
    racing.button("Share").click()
    ways.get_by_role("button", name="Copy link").click()
    expect(page.locator("#sp-linked")).to_contain_text("cop")
    assert "mine" not in ways.get_by_label("Copied text").input_value(), "recorded lanes need no name"


def test_the_lanes_become_a_picture_and_a_clip(racing, tmp_path):
    racing.button("Share").click()
    with racing.page.expect_download() as download:
        racing.page.locator("#sp-sharing").get_by_role("button", name="Race, SVG").click()
    download.value.save_as(tmp_path / "race.svg")
    root = ElementTree.parse(tmp_path / "race.svg").getroot()
    said = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    names = racing.page.locator(".svf-lane .svf-name").all_text_contents()
    assert names and all(any(words.startswith(name[:18]) for words in said) for name in names)
    with racing.page.expect_download() as download:
        racing.page.locator("#sp-sharing").get_by_role("button", name="Race, WebM").click()
    download.value.save_as(tmp_path / "race.webm")
    assert (tmp_path / "race.webm").read_bytes().startswith(b"\x1a\x45\xdf\xa3")
    assert (tmp_path / "race.webm").stat().st_size > 10_000
    with racing.page.expect_download(timeout=120_000) as download:
        racing.page.locator("#sp-sharing").get_by_role("button", name="Race, GIF").click()
    download.value.save_as(tmp_path / "race.gif")
    with Image.open(tmp_path / "race.gif") as moving:
        frames = [frame.convert("RGB").tobytes() for frame in ImageSequence.Iterator(moving)]
        assert moving.info["loop"] == 0 and moving.width == 1200
    assert len(set(frames)) > 5, "the lanes move"


def test_a_link_leads_to_the_map_of_papers_from_wherever_one_was(racing):
    racing.tab("About")
    racing.page.get_by_role("link", name="Their papers on a map").click()
    expect(racing.page.get_by_role("tab", name="Methods", exact=True)).to_have_attribute("aria-selected", "true")
    expect(racing.page.locator(".svf-map")).to_be_visible()
    racing.until("new URL(location.href).searchParams.get('methods') === 'papers'")


def test_the_map_of_papers_opens_runs_and_links_to_arxiv(racing):
    page = racing.page
    page.get_by_role("button", name="Papers", exact=True).press("Enter")
    racing.until("new URL(location.href).searchParams.get('methods') === 'papers'")
    assert page.locator(".svf-map thead th").all_inner_texts() == sorted(page.locator(".svf-map thead th").all_inner_texts())
    stand = page.locator(".svf-map td", has=page.get_by_role("button", name="STAND", exact=True))
    assert stand.get_attribute("data-year") == str(all_methods()["stand"].paper.year)
    link = page.get_by_role("link", name="STAND on arXiv, 2506.04708")
    assert (link.get_attribute("href"), link.get_attribute("rel")) == ("https://arxiv.org/abs/2506.04708", "noopener noreferrer")
    assert not racing.outside(), "a link asks nothing until it is followed"
    assert page.get_by_role("button", name="DFlash", exact=True).is_disabled()
    page.get_by_label("Search methods and papers").fill("2506")
    bright = page.locator(".svf-map p:not(.svf-away) .svf-chip").all_inner_texts()
    assert "STAND" in bright and "EAGLE-2" not in bright
    page.get_by_role("button", name="STAND", exact=True).click()
    racing.until(f"{racing.stage()}.feed.name === 'stand'")
    expect(page.locator("#sp-stage")).to_be_visible()
    expect(page.locator(".sp-summary").first.get_by_role("link", name="arXiv 2506.04708")).to_be_visible()
    racing.tab("Methods")
    page.get_by_role("button", name="One clock", exact=True).click()
    assert len(names(racing)) == len(RACE) + 1


def test_looser_acceptance_changes_the_picture_its_map_and_the_place_on_the_curve(racing):
    page, view = racing.page, racing.page.locator(".svf-relaxed")
    page.get_by_role("button", name="Exact and relaxed", exact=True).click()
    seen = set()
    for _ in range(2):
        for key in ("Home", "End"):
            view.get_by_label("How loosely codes are accepted").press(key)
            left, right = view.locator("img").evaluate_all(
                "pictures => pictures.map(one => [one.src, one.complete && one.naturalWidth])"
            )
            assert left[0] != right[0] and left[1] == right[1] == 64
            seen.add((view.locator("h2").inner_text(), right[0], view.locator(".svf-changed").count()))
        view.get_by_role("button", name="MuLo-SD", exact=True).click()
    assert len({title for title, *_ in seen}) == len({picture for _, picture, _ in seen}) == 4
    assert [changed for title, _, changed in sorted(seen) if "λ = 1:" in title][0] < max(changed for *_, changed in seen)
    view.locator(".svf-dot").first.click()
    expect(view.locator("h2")).to_contain_text("LANTERN++")
    assert "methods=relaxed" in page.url and not racing.errors
    page.get_by_role("button", name="One clock", exact=True).click()


def test_it_fits_a_phone(browser, url):
    with closing(AppPage(browser, url, "?tab=methods&methods=clock", viewport=PHONE, has_touch=True)) as phone:
        expect(phone.page.locator(".svf-lane")).to_have_count(len(RACE) + 1)
        fits = "document.documentElement.scrollWidth <= innerWidth"
        assert phone.page.evaluate(fits)
        for control in phone.page.locator(".svf-tools button, .svf-tools select, .svf-live button").all():
            box = control.bounding_box()
            assert box is None or box["height"] >= 43
        inside = (
            "lanes => lanes.every(lane => lane.lastChild.getBoundingClientRect().bottom <= lane.getBoundingClientRect().bottom)"
        )
        assert phone.page.locator(".svf-lane").evaluate_all(inside), "a lane's picture lies over the next lane"
        phone.page.get_by_role("button", name="Papers", exact=True).click()
        expect(phone.page.locator(".svf-chip").first).to_be_visible()
        assert phone.page.evaluate(fits)
