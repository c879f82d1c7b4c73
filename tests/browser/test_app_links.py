"""Links in the browser: to a run of any kind, out of any tab, and an address that follows the stage that is seen."""

from contextlib import closing

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.ui.app_state import make
from specviz.ui.settings import Settings
from tests.support.fakes.ui import FakeEngine, gallery
from tests.support.pages.app import AppPage, served
from tests.support.pages.stage import PHONE, PROJECTOR, patient

pytestmark = pytest.mark.browser

NAMES = ("token_recycling", "stand", "lantern_pp", "mulo_sd", "dream", "hivis")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = gallery(tmp_path_factory.mktemp("app") / "traces", NAMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECVIZ_CACHE", str(folder.parent))
        shared = make(Settings(traces=folder), FakeEngine())
    with served(shared) as found:
        yield found


@pytest.fixture(scope="module")
def visitor(browser, url):
    with closing(AppPage(browser, url, permissions=["clipboard-read", "clipboard-write"])) as found:
        yield found


def address(visitor, **parts):
    """Wait for an address with these parts, and without those that are None."""
    wanted = " && ".join(
        f"new URL(location.href).searchParams.get('{name}') === {'null' if value is None else repr(value)}"
        for name, value in parts.items()
    )
    visitor.until(wanted)


def test_a_link_to_a_picture_s_run_opens_its_tab_with_its_form(browser, url):
    with closing(AppPage(browser, url, "?trace=mulo_sd&step=2")) as linked:
        stage = linked.stage("#sp-image-stage")
        expect(linked.page.get_by_role("tab", name="Image")).to_have_attribute("aria-selected", "true")
        linked.until(f"{stage}.feed.name === 'mulo_sd' && {stage}.cursor === 1")
        for chosen in ("method", "recording"):
            expect(linked.page.locator(f"#sp-image-{chosen} select")).to_have_value("mulo_sd")
        address(linked, tab="image", trace="mulo_sd", step="2")
        assert linked.run("feed.name") == "token_recycling", "the first tab was given a run that is not its own"
        linked.tab("Text")
        expect(linked.page.locator("#sp-method select")).to_have_value("token_recycling")


def test_a_link_to_a_picture_s_run_never_shows_another_tab(browser, url):
    """Every frame until the tab is open is looked at: no stage of text is seen in any."""
    watch = """() => { window.seen = [];
      const look = () => {
        const drawn = document.querySelector('#sp-stage');
        if (drawn && drawn.checkVisibility({ visibilityProperty: true })) window.seen.push(performance.now());
        requestAnimationFrame(look);
      };
      look(); }"""
    with closing(browser.new_context(viewport={"width": 1280, "height": 720})) as context:
        tab = patient(context.new_page())
        tab.add_init_script(f"({watch})()")
        tab.goto(f"{url}?trace=hivis")
        expect(tab.get_by_role("tab", name="Vision-language")).to_have_attribute("aria-selected", "true")
        expect(tab.locator("#sp-see-stage .sv-head")).to_be_visible()
        expect(tab.locator("#sp-see-preview img")).to_be_visible()
        expect(tab.locator("#sp-scenes button")).not_to_have_count(0)
        assert tab.evaluate("window.seen.length") == 0
        tab.goto(url)
        expect(tab.locator("#sp-stage .sv-head")).to_be_visible()
        tab.wait_for_timeout(100)
        assert tab.evaluate("window.seen.length") > 0


def test_a_link_s_own_tab_is_opened_whatever_run_it_names(browser, url):
    with closing(AppPage(browser, url, "?trace=hivis&step=3&tab=about")) as linked:
        expect(linked.page.get_by_role("tab", name="About")).to_have_attribute("aria-selected", "true")
        linked.page.wait_for_timeout(500)
        expect(linked.page.get_by_role("tab", name="About")).to_have_attribute("aria-selected", "true")
        linked.tab("Vision-language")
        linked.until(f"{linked.stage('#sp-see-stage')}.feed.name === 'hivis' && {linked.stage('#sp-see-stage')}.cursor === 2")


def test_a_stage_stands_still_while_its_tab_is_left_and_then_goes_on(visitor):
    visitor.until(f"{visitor.stage()}.player.playing && {visitor.stage()}.cursor >= 1")
    visitor.tab("About")
    visitor.until(f"!{visitor.stage()}.player.playing")
    left = visitor.run("clock")
    visitor.page.wait_for_timeout(500)
    assert visitor.run("clock") == left
    visitor.tab("Text")
    visitor.until(f"{visitor.stage()}.player.playing && {visitor.stage()}.clock > {left}")
    visitor.run("player.pause()")
    visitor.tab("About")
    visitor.tab("Text")
    visitor.page.wait_for_timeout(300)
    assert not visitor.run("player.playing"), "paused by hand, and played all the same"


def test_the_address_follows_the_stage_that_is_seen(visitor):
    address(visitor, tab=None, trace="token_recycling")
    visitor.tab("Image")
    address(visitor, tab="image", trace="lantern_pp")
    image = visitor.stage("#sp-image-stage")
    visitor.page.evaluate(f"{image}.go(6)")
    address(visitor, trace="lantern_pp", step="7")
    visitor.tab("About")
    address(visitor, tab="about", trace=None, step=None)
    visitor.tab("Image")
    address(visitor, tab="image", trace="lantern_pp", step="7")
    visitor.tab("Text")
    address(visitor, tab=None, trace="token_recycling")


def test_a_run_sent_from_the_traces_tab_plays_in_its_own_tab(visitor):
    visitor.tab("Traces")
    visitor.choose("#sp-run", "A run of hivis")
    expect(visitor.page.locator(".sp-facts:visible")).to_contain_text("Describe the picture")
    visitor.button("Show on the stage").click()
    expect(visitor.page.get_by_role("tab", name="Vision-language")).to_have_attribute("aria-selected", "true")
    visitor.until(f"{visitor.stage('#sp-see-stage')}.feed.name === 'hivis'")
    expect(visitor.page.locator("#sp-see-method select")).to_have_value("hivis")
    address(visitor, tab="vision-language", trace="hivis")


def test_a_link_opens_a_pair_of_runs_at_its_step(browser, visitor):
    visitor.tab("Compare")
    left, right = visitor.stage("#sp-left"), visitor.stage("#sp-right")
    visitor.until(f"{left}.trace.steps.length > 0 && {right}.trace.steps.length > 0")
    visitor.choose("#sp-one", "A run of stand")
    expect(visitor.page.locator("[data-testid=dropdown-option]")).to_have_count(0)
    visitor.choose("#sp-two", "A run of token_recycling")
    visitor.until(f"{left}.feed.name === 'stand' && {right}.feed.name === 'token_recycling'")
    visitor.page.evaluate(f"{left}.go(5)")
    address(visitor, tab="compare", left="stand", right="token_recycling", step="6", trace=None)
    query = visitor.page.evaluate("location.search")
    with closing(AppPage(browser, visitor.url, query)) as other:
        other.until(f"{left}.feed.name === 'stand' && {right}.feed.name === 'token_recycling' && {left}.cursor === 5")
        expect(other.page.locator("#sp-one input")).to_have_value("A run of stand")
        address(other, left="stand", right="token_recycling", step="6")
        other.tab("Text")
        address(other, tab=None, trace="token_recycling", left=None, right=None)


def test_a_link_opens_a_page_of_a_lesson(browser, visitor):
    visitor.tab("Learn")
    visitor.button("Next").click()
    address(visitor, tab="learn", at="2", trace=None)
    step, query = visitor.run("cursor", "#sp-lesson"), visitor.page.evaluate("location.search")
    said = visitor.page.locator(".sp-lesson").inner_text()
    with closing(AppPage(browser, visitor.url, query)) as other:
        expect(other.page.locator(".sp-lesson")).to_contain_text("2 of")
        assert other.page.locator(".sp-lesson").inner_text() == said
        other.until(f"{other.stage('#sp-lesson')}.cursor === {step}")
        other.button("Back").click()
        address(other, tab="learn", at="1")


def test_a_link_to_a_lesson_that_is_not_here_opens_the_first(browser, url):
    with closing(AppPage(browser, url, "?tab=learn&lesson=nowhere&at=x")) as linked:
        expect(linked.page.locator(".sp-lesson")).to_contain_text("1 of")


def test_a_live_run_is_shared_by_a_link_that_opens_its_step(browser, visitor):
    visitor.tab("Text")
    visitor.button("Run live").click()
    stage = visitor.stage()
    visitor.until(f"{stage}.trace.mode === 'live' && {stage}.trace.end && !{stage}.trace.coming")
    expect(visitor.button("Run live")).to_be_visible()
    address(visitor, trace=None)
    visitor.page.evaluate(f"{stage}.go(4)")
    visitor.button("Share").click()
    ways = visitor.page.locator("#sp-sharing")
    expect(ways).to_contain_text("keeps your run, with its prompt")
    ways.get_by_role("button", name="Copy link").click()
    said = visitor.page.locator("#sp-linked")
    expect(said).to_contain_text("kept here until")
    until = said.inner_text().split("until ")[1].split(". ")[0]
    expect(ways.get_by_role("button", name="Copy link")).to_be_focused()
    visitor.page.keyboard.press("Escape")
    expect(ways).to_be_hidden()
    expect(visitor.button("Share")).to_be_focused()
    copied = visitor.page.evaluate("navigator.clipboard.readText()")
    text = visitor.page.evaluate(f"{stage}.trace.lines.join('\\n')")
    address(visitor, trace=visitor.page.evaluate(f"'mine:' + {stage}.feed.name"), step="5", tab=None)
    assert copied.startswith(visitor.url)
    with closing(AppPage(browser, visitor.url, copied.removeprefix(visitor.url))) as other:
        other.until(f"{stage}.trace.mode === 'recorded' && {stage}.cursor === 4 && {stage}.trace.end")
        assert other.page.evaluate(f"{stage}.trace.lines.join('\\n')") == text
        expect(other.page.locator(".sp-say:visible")).to_contain_text(f"kept here until {until}")
        address(other, step="5", tab=None)
        other.page.reload()
        other.until(f"{stage}.trace.lines.length && {stage}.cursor === 4")
        assert other.page.evaluate(f"{stage}.trace.lines.join('\\n')") == text


def test_a_link_whose_run_is_over_says_so_and_shows_the_page(browser, url):
    with closing(AppPage(browser, url, "?trace=mine:aaaaaaaaaaaaaaaaaaaaaaaa&step=2")) as late:
        expect(late.page.locator(".sp-say:visible")).to_contain_text("no longer kept here")
        assert late.run("feed.name") == "token_recycling"
        late.button("Run live").click()
        late.until(f"{late.stage()}.trace.mode === 'live'")


@pytest.mark.parametrize("size", [PROJECTOR, PHONE], ids=["projector", "phone"])
@pytest.mark.parametrize("tab", ["text", "vision-language", "image", "compare", "learn"])
def test_a_few_tabs_lead_to_the_step_button_of_every_stage(browser, url, tab, size):
    with closing(AppPage(browser, url, f"?tab={tab}", viewport=size)) as linked:
        step = linked.button("Step").first
        expect(step).to_be_enabled()
        reached = []
        while not step.evaluate("(one) => one === document.activeElement"):
            linked.page.keyboard.press("Tab")
            reached.append(linked.page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent.trim()"))
            assert len(reached) <= 25, reached
