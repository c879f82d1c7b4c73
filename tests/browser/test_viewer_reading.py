"""The reading view in a real browser: chunks, the draft of a step in place, the code drawer; by keyboard, and hostile."""

import os
from pathlib import Path

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.ui.app_state import make
from specviz.ui.settings import Settings
from tests.support.fakes.ui import FakeEngine, gallery
from tests.support.pages.app import AppPage, served
from tests.support.viewer import cases

pytestmark = pytest.mark.browser

NONE = "This page holds the run alone"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = gallery(tmp_path_factory.mktemp("app") / "traces", ("token_recycling", "ddtree"))
    with served(make(Settings(traces=folder), FakeEngine())) as found:
        yield found


def test_chunks_are_the_steps_words_and_open_their_draft_in_place(show):
    tab = show(cases.trace(cases.bushy(0), cases.bushy(1), cases.chain(0)))
    tab.page.get_by_role("button", name="Read", exact=True).click()
    chunks = tab.page.locator(".sv-chunk")
    expect(chunks).to_have_count(3)
    pieces = tab.run("stage.stage.trace.steps.map((step) => step.pieces.join(''))")
    assert chunks.all_text_contents() == pieces
    expect(tab.page.locator(".sv-strip")).to_be_hidden()
    chunks.nth(1).click()
    assert tab.step() == 1
    draft = tab.page.locator(".sv-read-draft")
    expect(draft.locator("h3")).to_have_text("Step 2 of 3: 3 of 80 accepted")
    assert tab.run("document.querySelector('.sv-read-draft').previousSibling.dataset.step") == "1"
    path = tab.run("stage.stage.step.path.length")
    expect(draft.locator(".sv-guess.sv-is-accepted")).to_have_count(path)
    rejected = tab.run("stage.stage.step.nodes.filter((node) => node.status === 'rejected').length")
    for more in draft.locator(".sv-more").all():
        more.click()
    assert 0 < draft.locator(".sv-guess.sv-is-rejected").count() <= rejected
    draft.locator(".sv-guess.sv-is-rejected").first.click()
    expect(draft.locator(".sv-read-why")).to_contain_text("rejected")
    assert tab.run("stage.stage.selected.status") == "rejected"
    skipped = tab.run("stage.stage.step.counts.skipped")
    expect(draft.locator("summary").first).to_have_text(f"{skipped} tokens beside the path, not verified")
    chunks.nth(1).click()
    expect(draft).to_have_count(0)
    tab.page.get_by_role("button", name="Tree", exact=True).click()
    expect(tab.page.locator(".sv-tree")).to_be_visible()
    expect(tab.page.locator(".sv-strip")).to_be_visible()


def test_the_keyboard_reads_and_a_playing_run_shows_no_draft(show):
    tab = show(cases.trace(cases.bushy(0), cases.bushy(1), cases.chain(0)))
    tab.page.locator(".specviz").focus()
    tab.page.keyboard.press("e")
    expect(tab.page.locator(".sv-read-draft h3")).to_contain_text("Step 1 of 3")
    tab.page.locator(".sv-chunk[tabindex='0']").focus()
    tab.page.keyboard.press("ArrowRight")
    expect(tab.page.locator(".sv-read-draft h3")).to_contain_text("Step 2 of 3")
    tab.page.keyboard.press("Enter")
    tab.run("stage.flush()")
    tab.run("stage.stage.player.speed = 0.02; stage.play(); stage.flush()")
    expect(tab.page.locator(".sv-read-draft")).to_have_count(0)
    tab.run("stage.pause(); stage.go(2); stage.flush()")
    expect(tab.page.locator(".sv-read-draft h3")).to_contain_text("Step 3 of 3")


def test_hostile_tokens_stay_text_and_a_page_of_one_file_says_why_it_has_no_code(show):
    tab = show(cases.trace(cases.hostile()))
    tab.run("stage.stage.set({ reading: true }); stage.flush()")
    for more in tab.page.locator(".sv-more").all():
        more.click()
    assert tab.run("document.querySelectorAll('.sv-reading :is(img, script, iframe, a, b, svg)').length") == 0
    tab.page.locator("[data-key=code]").click()
    expect(tab.page.locator(".sv-read-code")).to_contain_text(NONE)


@pytest.fixture(scope="module")
def reader(browser, url):
    page = AppPage(browser, url, "?trace=ddtree&step=3", reduced_motion="reduce")
    page.until(f"{page.stage()}.feed.name === 'ddtree' && {page.stage()}.cursor === 2")
    yield page
    page.close()


def test_the_drawer_shows_the_package_s_own_lines_fetched_when_it_opens(reader):
    asked = []
    reader.page.on("request", lambda request: asked.append(request.url))
    reader.button("Read").click()
    drawer = reader.page.locator("#sp-stage .sv-read-code")
    reader.page.locator("#sp-stage [data-key=code]").click()
    expect(drawer.locator("pre").first).to_be_visible()
    assert len([one for one in asked if "kind=source" in one]) == 1
    names = drawer.locator("pre").evaluate_all("(all) => all.map((one) => one.ariaLabel)")
    assert "BestFirst.draft" in names and "Match.judge" in names and "RunState.commit_round" in names
    whole = Path("specviz/acceptance/exact.py").read_text(encoding="utf-8")
    shown = drawer.get_by_label("Match.judge").locator("code").all_text_contents()
    assert all(line.strip() in whole for line in shown) and len(shown) > 10
    edges = {
        drawer.locator(f".sv-code-{phase} pre").first.evaluate("(one) => getComputedStyle(one).borderLeftColor")
        for phase in ("draft", "judge", "commit")
    }
    assert len(edges) == 3


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_nothing_in_it_breaks_a_rule_of_accessibility(reader, colours):
    if "AXE_JS" not in os.environ:
        pytest.skip("no axe here")
    reader.page.emulate_media(color_scheme=colours)
    reader.until(f"document.body.classList.contains('dark') === {str(colours == 'dark').lower()}")
    reader.page.evaluate(Path(os.environ["AXE_JS"]).expanduser().read_text(encoding="utf-8"))
    found = reader.page.evaluate(
        "axe.run('#sp-stage').then((found) => found.violations.map((one) => [one.id, one.nodes.length]))"
    )
    assert found == []


def test_arrows_go_through_the_guesses_of_which_one_is_a_stop_for_tab(reader):
    if reader.button("Read").count():  # an earlier test may have opened it
        reader.button("Read").click()
    guesses = reader.page.locator("#sp-stage .sv-read-draft .sv-guess")
    expect(guesses.first).to_be_visible()
    assert guesses.count() > 1 and reader.page.locator("#sp-stage .sv-read-draft .sv-guess[tabindex='0']").count() == 1
    guesses.first.focus()
    reader.page.keyboard.press("ArrowRight")
    expect(guesses.nth(1)).to_be_focused()
    cursor = reader.run("cursor")
    reader.page.keyboard.press("Enter")
    expect(guesses.nth(1)).to_be_focused()
    expect(guesses.nth(1)).to_have_attribute("aria-pressed", "true")
    assert reader.run("cursor") == cursor
