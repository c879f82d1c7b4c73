"""The page as a visitor meets it: a recorded run that plays at once, links, themes, sizes, and every tab."""

import json
import os
import re
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.ui.widgets import examples
from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages import stage as stage_page
from tests.support.pages.app import AppPage, served
from tests.support.traces.samples import lines, sample_trace

pytestmark = pytest.mark.browser

TABS = ("Text", "Vision-language", "Image", "Compare", "Methods", "Story", "Play", "Learn", "Traces", "About")
STAGES = {"Text": ("#sp-stage",), "Compare": ("#sp-left", "#sp-right"), "Learn": ("#sp-lesson",)}
SMALLEST = """() => [...document.querySelectorAll('body *')].filter((one) => one.offsetParent &&
  [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) && !one.closest('svg') &&
  parseFloat(getComputedStyle(one).fontSize) < 11).map((one) => one.className + ': ' + one.textContent.slice(0, 40))"""


def drawn(visitor, tab):
    """Wait until the stages of a tab show a run, so that what is looked at is what a visitor sees."""
    if tab == "Play":
        expect(visitor.page.locator(".svp-level")).to_be_visible()
    if tab == "Methods":
        expect(visitor.page.locator(".svf-nav")).to_be_visible()
    if tab == "Story":
        expect(visitor.page.locator(".sst-nav [aria-current=step]")).to_be_visible()
    for stage in STAGES.get(tab, ()):
        visitor.until(f"{visitor.stage(stage)}.trace.steps.length > 0 && {visitor.stage(stage)}.width > 0")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with served(app(tmp_path_factory.mktemp("app"), FakeEngine())) as found:
        yield found


def test_a_link_to_a_run_that_is_not_here_is_explained(browser, url):
    with closing(AppPage(browser, url, "?trace=nowhere")) as linked:
        expect(linked.page.locator(".sp-say-error")).to_contain_text("There is no recorded run 'nowhere'")


def test_the_stage_fills_a_projector_without_scrolling(visitor):
    for name in ("Text", "Learn"):
        visitor.tab(name)
        drawn(visitor, name)
        visitor.until("String([document.documentElement.scrollHeight, document.documentElement.scrollWidth]) === '720,1280'")
    visitor.tab("Text")
    box = visitor.page.locator("#sp-stage .sv-transport").bounding_box()
    assert box["y"] + box["height"] <= 720
    run = visitor.button("Run live").bounding_box()
    assert run["y"] + run["height"] <= 720


def test_nothing_overflows_on_a_phone_and_no_text_is_tiny(browser, url):
    with closing(AppPage(browser, url, viewport={"width": 390, "height": 844}, has_touch=True)) as phone:
        for name in TABS:
            phone.tab(name)
            expect(phone.page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
            drawn(phone, name)
            phone.until("document.documentElement.scrollWidth === innerWidth")
            assert phone.page.evaluate(SMALLEST) == [], name


def test_on_a_phone_playing_and_explaining_stay_in_reach_while_one_scrolls(browser, url):
    with closing(AppPage(browser, url, viewport=stage_page.PHONE, has_touch=True, is_mobile=True)) as phone:
        play, sheet = phone.page.locator("#sp-stage .sv-play"), phone.page.locator("#sp-stage .sv-inspector")
        phone.button("Tree").tap()
        for _ in range(4):
            box, tabs = play.bounding_box(), phone.page.locator("#sp-stage .sv-tabs").bounding_box()
            assert box["y"] + box["height"] <= 844 and tabs["y"] + tabs["height"] <= box["y"]
            phone.page.evaluate("scrollBy(0, 150)")
        expect(sheet.locator(".sv-pane:visible")).to_have_count(0)
        phone.page.evaluate("scrollTo(0, 0)")
        phone.page.locator("#sp-stage .sv-tree .sv-node.sv-is-bonus, #sp-stage .sv-tree .sv-node.sv-is-accepted").first.tap()
        expect(sheet.locator(".sv-pane:visible")).to_have_count(1)
        expect(play).to_be_in_viewport(ratio=1)
        expect(sheet).to_be_in_viewport(ratio=1)
        over = "document.querySelector('#sp-stage .sv-inspector').getBoundingClientRect().top"
        phone.until(f"document.querySelector('#sp-stage .sv-tree [aria-selected=true]').getBoundingClientRect().bottom < {over}")
        phone.button("Step").tap()
        expect(sheet.locator(".sv-pane:visible")).to_have_count(1)
        sheet.get_by_role("tab", name="Verdict").tap()
        expect(sheet.locator(".sv-pane:visible")).to_have_count(0)


def test_tree_and_draft_are_on_the_first_screen_of_a_phone(browser, url):
    with closing(
        AppPage(browser, url, viewport=stage_page.PHONE, has_touch=True, is_mobile=True, reduced_motion="reduce")
    ) as phone:
        sheet = phone.page.locator("#sp-stage .sv-inspector").bounding_box()
        draft, turn = phone.page.locator("#sp-stage .sv-read-draft .sv-guess").first, phone.button("Tree")
        expect(draft).to_be_in_viewport()
        tree = phone.page.locator("#sp-stage .sv-tree .sv-node").first.bounding_box()
        assert 0 < tree["y"] < draft.bounding_box()["y"] < turn.bounding_box()["y"] <= sheet["y"] - 44
        turn.tap()
        tree = phone.page.locator("#sp-stage .sv-scroll").bounding_box()
        assert tree["y"] + tree["height"] <= sheet["y"] + 12 and tree["height"] >= 300
        phone.tab("Compare")
        expect(phone.page.locator("#sp-left .sv-tree .sv-node").last).to_be_in_viewport()


def test_two_links_lead_over_the_tabs(newcomer):
    page = newcomer.page
    page.locator(".sp-skip").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.matches('#sp-stage .specviz')")
    page.locator(".sp-skip").last.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.matches('#sp-method select')")
    newcomer.tab("Play")  # has neither a stage nor settings
    for link in page.locator(".sp-skip").all():
        link.press("Enter")
        assert page.evaluate("document.activeElement.closest('[role=tabpanel]') !== null")


def test_arrows_go_through_the_tabs_and_the_tree_s_buttons(newcomer):
    page = newcomer.page
    page.get_by_role("tab", name="Text", exact=True).focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Vision-language")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="Text", exact=True)).to_be_focused()
    tools = page.locator("#sp-stage").get_by_role("toolbar", name="Tree").get_by_role("button").locator("visible=true")
    tools.first.focus()
    for at in range(1, tools.count()):
        page.keyboard.press("ArrowRight")
        expect(tools.nth(at)).to_be_focused()
    assert newcomer.run("cursor") == 0, "an arrow moved the run"


LEVELS = """[...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
.filter((one) => one.getClientRects().length && one.checkVisibility()).map((one) => [Number(one.tagName[1]), one.textContent])"""


def test_headings_are_in_order_on_every_tab(visitor):
    for name in TABS:
        visitor.tab(name)
        drawn(visitor, name)
        levels = visitor.page.evaluate(LEVELS)
        assert levels[0][0] == 1 and sum(level == 1 for level, _ in levels) == 1, name
        assert not [pair for pair in zip(levels, levels[1:], strict=False) if pair[1][0] > pair[0][0] + 1], name


def test_the_page_follows_the_system_s_colours_and_can_be_told_otherwise(browser, url):
    with closing(AppPage(browser, url, color_scheme="dark")) as night:
        night.until("document.body.classList.contains('dark')")
        night.page.get_by_role("button", name="Use light colours").click()
        night.until("!document.body.classList.contains('dark')")
        night.page.reload()
        night.until(f"{night.stage()}.trace.steps.length > 0 && !document.body.classList.contains('dark')")


def test_controls_can_be_reached_and_used_by_keyboard(visitor):
    visitor.tab("Text")
    visitor.page.locator("#sp-prompt textarea").focus()
    reached = []
    for _ in range(40):
        visitor.page.keyboard.press("Tab")
        reached.append(visitor.page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
        if "Run live" in reached:
            break
    assert "Examples" in reached and "Run live" in reached and any("basics" in one for one in reached)


def test_the_focus_stays_in_a_drop_down_where_something_was_chosen(visitor):
    visitor.tab("Text")
    box = visitor.page.locator("#sp-target input")
    first = visitor.page.locator("[role=option]:visible").first
    for choose in (first.click, lambda: visitor.page.keyboard.press("Enter")):
        box.click()
        expect(first).to_be_visible()
        choose()
        expect(box).to_have_attribute("aria-expanded", "false")
        expect(box).to_be_focused()
    visitor.page.keyboard.press("Tab")
    expect(box).not_to_be_focused()


def test_an_example_is_one_click(visitor):
    prompt, temperature = examples.prompts("text")[0]
    visitor.tab("Text")
    visitor.page.locator("summary:visible", has_text="Examples").click()
    visitor.page.get_by_role("button", name="Edit a JSON").click()
    expect(visitor.page.locator("#sp-prompt textarea")).to_have_value(prompt)
    expect(visitor.page.locator("#sp-basics").get_by_label("Temperature")).to_have_value(f"{temperature:g}")


def test_choosing_a_method_shows_its_recorded_run_and_parameters_and_keeps_what_was_typed(newcomer):
    temperature = newcomer.page.locator("#sp-basics").get_by_label("Temperature")
    newcomer.pick("#sp-method", "STAND")
    newcomer.until(f"{newcomer.stage()}.feed.name === 'stand' && {newcomer.stage()}.player.playing")
    expect(newcomer.page.locator("#sp-recording select")).to_have_value("stand")
    expect(temperature).to_have_value("0.8")
    newcomer.page.locator("#sp-prompt textarea").fill("My own prompt.")
    newcomer.page.locator("#sp-basics").get_by_label("New tokens").fill("33")
    newcomer.pick("#sp-method", "Prompt lookup")
    newcomer.until(f"{newcomer.stage()}.feed.name === 'prompt_lookup'")
    expect(temperature).to_have_value("0")
    expect(newcomer.page.locator("#sp-basics").get_by_label("New tokens")).to_have_value("33")
    expect(newcomer.page.locator("#sp-prompt textarea")).to_have_value("My own prompt.")
    newcomer.pick("#sp-method", "EAGLE-2")
    expect(newcomer.page.locator(".sp-side")).to_contain_text("No run of this method is recorded here")
    assert newcomer.run("feed.name") == "prompt_lookup"
    newcomer.pick("#sp-method", "STAND")
    nodes = newcomer.page.locator("#sp-own").get_by_label("Nodes")
    expect(nodes).to_have_count(1)
    nodes.fill("900")
    expect(newcomer.page.locator("#sp-own [role=alert]", has_text="0 to 80")).to_be_visible()
    assert nodes.get_attribute("aria-invalid") == "true"
    newcomer.pick("#sp-method", "Speculative sampling")
    expect(newcomer.page.locator("#sp-draft")).to_be_visible()
    expect(newcomer.page.locator("#sp-own").get_by_label("Nodes")).to_have_count(0)


def test_the_fold_explains_the_speed_and_draws_figures(visitor):
    visitor.tab("Text")
    visitor.page.get_by_text("term by term").click()
    expect(visitor.page.locator("#sp-figures")).to_contain_text("predicted speed-up")
    expect(visitor.page.locator("#sp-figures .js-plotly-plot")).to_have_count(5)


def test_a_lesson_hides_the_verdict_until_the_class_has_guessed(visitor):
    visitor.tab("Learn")
    visitor.button("Next").click()
    visitor.until(f"{visitor.stage('#sp-lesson')}.step && !{visitor.stage('#sp-lesson')}.step.bonus")
    hidden = visitor.run("step", "#sp-lesson")
    assert hidden["path"] == [] and {node["status"] for node in hidden["nodes"]} <= {"root", "skipped", "pruned"}
    assert all(node["p"] is None for node in hidden["nodes"][1:])
    visitor.page.locator(".sp-guess label").first.click()
    visitor.button("Reveal").click()
    expect(visitor.page.locator(".sp-reveal")).to_contain_text("Answer:")
    expect(visitor.page.locator(".sp-reveal")).to_be_in_viewport(ratio=0.9)
    visitor.until(f"{visitor.stage('#sp-lesson')}.step.bonus")
    shown = "(panel) => window.specvizPage.go('#sp-lesson', { step: 2, panel })"
    for panel, told in (("batch_cache", ["method", "batch_cache"]), (True, ["method", None]), (False, ["verdict", None])):
        visitor.page.evaluate(shown, panel)
        stage = visitor.stage("#sp-lesson")
        assert visitor.page.evaluate(f"[{stage}.tab, {stage}.selectedNote]") == told


def test_lessons_are_a_path_that_remembers_what_was_learned(newcomer):
    newcomer.tab("Learn")
    pages = newcomer.page.locator(".sp-lesson")
    status = newcomer.page.locator(".sp-learned [role=status]")
    expect(status).to_have_text("0 of 4 done")
    newcomer.button("Next").click()
    newcomer.page.locator(".sp-guess label").first.click()
    newcomer.button("Reveal").click()
    expect(status).to_have_text(re.compile(r"0 of 4 done · [01] of 1 right"))
    for number in (3, 4):
        newcomer.button("Next").click()
        expect(pages).to_contain_text(f"{number} of 4")
    newcomer.button("Reveal").click()
    expect(newcomer.page.locator(".sp-onward")).to_contain_text("Next: Accepting by chance")
    expect(status).to_have_text(re.compile("1 of 4 done · [01] of 1 right"))
    newcomer.button("Next lesson").click()
    expect(pages).to_contain_text("Accepting by chance")
    expect(newcomer.page.locator("#sp-lesson-choice select")).to_have_value("03-chance")
    newcomer.page.reload()
    newcomer.tab("Learn")
    expect(status).to_have_text(re.compile("1 of 4 done"))
    expect(newcomer.page.locator("#sp-lesson-choice option").first).to_contain_text("✓")
    newcomer.page.get_by_role("button", name="Start over").click()
    expect(status).to_have_text("0 of 4 done")


def test_a_lesson_is_printed_as_a_sheet_of_its_own(visitor):
    visitor.tab("Learn")
    visitor.page.get_by_role("button", name="Print sheet").click()
    visitor.until("document.querySelector('#sp-lesson-choice iframe').contentDocument.querySelector('.answers')")
    sheet = visitor.page.frame_locator("#sp-lesson-choice iframe")
    assert sheet.locator(".boxes li").count() > 4 and sheet.locator(".draft code").count() > 2
    visitor.page.get_by_role("button", name="Teacher’s notes").click()
    expect(sheet.locator("h1")).to_have_text("Teacher's notes")


def test_two_runs_move_in_step(visitor):
    visitor.tab("Compare")
    left, right = visitor.stage("#sp-left"), visitor.stage("#sp-right")
    visitor.until(f"{left}.trace.steps.length > 0 && {right}.trace.steps.length > 0")
    visitor.page.evaluate(f"{left}.go(7)")
    written = "(stage) => stage.trace.steps.slice(0, stage.cursor + 1).reduce((sum, step) => sum + step.emitted.length, 0)"
    visitor.until(f"{right}.cursor > 0 && ({written})({right}) >= ({written})({left})")
    before = visitor.page.evaluate(f"({written})({left})")
    last = visitor.page.evaluate(f"{right}.trace.steps[{right}.cursor].emitted.length")
    assert visitor.page.evaluate(f"({written})({right})") - last < before
    expect(visitor.page.locator(".sp-verdict")).to_contain_text(", same text")


def test_a_pair_is_on_one_clock_and_both_sides_are_chosen_and_run_here(visitor):
    visitor.tab("Compare")
    left, right = visitor.stage("#sp-left"), visitor.stage("#sp-right")
    visitor.until(f"{left}.span > 0 && {right}.span > 0")
    lane = "(stage) => stage.trace.end.baseline.token_ns.reduce((sum, ns) => sum + ns, 0) / stage.span"
    assert visitor.page.evaluate(f"({lane})({left}) === ({lane})({right})")
    expect(visitor.page.locator(".sp-race tr")).to_have_count(3)
    visitor.choose("#sp-one", "A run of stand")
    expect(visitor.page.locator(".sp-verdict")).to_contain_text("Their temperatures differ")
    prompt = visitor.page.locator("#sp-both-prompt :is(input, textarea)")
    expect(visitor.page.locator(".sp-warm input")).to_have_value("0.8")
    prompt.fill("My own prompt.")
    visitor.choose("#sp-two", "A run of speculative_sampling")
    visitor.until(f"{right}.trace.run.method === 'speculative_sampling'")
    visitor.button("Run both").click()
    visitor.until(f"{left}.trace.mode === 'live' && {left}.trace.end && {right}.trace.mode === 'live' && {right}.trace.end")
    assert visitor.run("trace.run.prompt", "#sp-left") == visitor.run("trace.run.prompt", "#sp-right") == "My own prompt."
    expect(visitor.page.locator(".sp-verdict")).to_contain_text("Measured alternately, 2 times each")
    visitor.until(f"{left}.span > 0 && {right}.span > 0")
    expect(prompt).to_have_value("My own prompt.")


def test_a_run_is_saved_as_a_file(visitor):
    visitor.tab("Traces")
    with visitor.page.expect_download() as waiting:
        visitor.page.get_by_role("button", name="Trace file").click()
    assert waiting.value.suggested_filename == "token-recycling-smollm2-135m-instruct.spectrace.jsonl"
    with visitor.page.expect_download() as waiting:
        visitor.page.get_by_role("button", name="Replay page").click()
    text = Path(waiting.value.path()).read_text(encoding="utf-8")
    assert "default-src 'none'" in text


def test_a_good_file_opens_and_a_hostile_one_is_refused_by_line(visitor, tmp_path):
    visitor.tab("Traces")
    made = lines(sample_trace(6, method="stand"))
    good, bad = tmp_path / "good.spectrace.jsonl", tmp_path / "bad.spectrace.jsonl"
    good.write_text("\n".join(made) + "\n", encoding="utf-8")
    bad.write_text(
        "\n".join([made[0], json.dumps({**json.loads(made[1]), "nodes": "<img src=x onerror=alert(1)>"})]),
        encoding="utf-8",
    )

    def upload(file):
        with visitor.page.expect_file_chooser() as chooser:
            visitor.button("Choose a .spectrace.jsonl file").click()
        chooser.value.set_files(file)

    upload(bad)
    expect(visitor.page.locator(".sp-say-error")).to_contain_text("line 2")
    upload(good)
    expect(visitor.page.locator("#sp-run input")).to_have_value(
        "opened: STAND, T = 0.8 · Explain why the sky is blue, then copy t…"
    )
    visitor.button("Show on the stage").click()
    visitor.until(f"{visitor.stage()}.feed.name.startsWith('mine:') && {visitor.stage()}.trace.steps.length === 6")


@pytest.mark.parametrize(("scheme", "rules"), [("light", {}), ("dark", {"runOnly": ["color-contrast"]})], ids=["light", "dark"])
def test_no_serious_accessibility_violation_of_ours(browser, url, scheme, rules):
    """The dark page is the light one in other colours."""
    axe = os.environ.get("AXE_JS", "")
    if not axe:
        pytest.skip("AXE_JS names no axe.min.js")
    with closing(AppPage(browser, url, color_scheme=scheme)) as page:
        page.page.add_script_tag(path=axe)
        for name in TABS:
            page.tab(name)
            drawn(page, name)
            found = page.page.evaluate("(rules) => axe.run(document, { resultTypes: ['violations'], ...rules })", rules)[
                "violations"
            ]
            told = [
                (one["id"], [node["html"][:200] for node in one["nodes"]])
                for one in found
                if one["impact"] in ("serious", "critical")
            ]
            assert told == [], f"{name}, {scheme}"
