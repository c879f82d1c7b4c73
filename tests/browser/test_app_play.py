"""The Play tab in the browser: bars to drag by mouse, finger and key, coins, costs, and no request after opening."""

import json
from contextlib import closing

import pytest

pytest.importorskip("playwright")
pytest.importorskip("gradio")

from playwright.sync_api import expect

from specviz.models.pass_times import FILE, VERSION
from tests.support.fakes.ui import HARDWARE, FakeEngine, app
from tests.support.pages.app import AppPage, served
from tests.support.pages.stage import PHONE

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("SPECVIZ_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def url(tmp_path_factory, cache):
    with served(app(tmp_path_factory.mktemp("app"), FakeEngine())) as found:
        yield found


@pytest.fixture
def playing(browser, url):
    with closing(AppPage(browser, url, "?tab=play", reduced_motion="reduce")) as found:
        expect(found.page.locator(".svp-level")).to_be_visible()
        yield found


def handle(playing, name):
    return playing.page.get_by_role("slider", name=name, exact=True)


def value(playing, name):
    return float(handle(playing, name).get_attribute("aria-valuenow") or "nan")


def readouts(playing):
    return playing.page.locator(".svp-readout b").all_inner_texts()


def test_the_script_is_fetched_when_the_tab_is_opened_and_nothing_after_that(newcomer):
    page = newcomer.page
    scripts = "[...document.scripts].filter((one) => one.src.includes('/specviz/viewer/')).length"
    assert page.evaluate(scripts) == 1 and page.locator(".svp").count() == 0
    newcomer.tab("Play")
    expect(page.locator(".svp-level")).to_be_visible()
    assert page.evaluate(scripts) == 2
    page.wait_for_timeout(1000)
    newcomer.requests.clear()
    for level in ("A chain", "A tree", "Look-alikes", "What it costs", "One token"):
        newcomer.button(level).click()
    newcomer.button("Drop a coin").click()
    expect(page.locator(".svp-said")).to_contain_text("was drafted")
    page.wait_for_timeout(300)
    assert [one for one in newcomer.requests if not one.startswith("data:")] == []


def test_a_bar_follows_mouse_and_keys_and_the_others_make_room(playing):
    page = playing.page
    names = [
        one for side in "pq" for one in [f"{side} of ·{token}" for token in ("blue", "clear", "grey", "dark", "full", "low")]
    ]
    knob = handle(playing, "q of ·blue").locator("circle").bounding_box()
    before = value(playing, "q of ·blue")
    page.mouse.move(knob["x"] + 9, knob["y"] + 9)
    page.mouse.down()
    page.mouse.move(knob["x"] + 9, knob["y"] + 69, steps=4)
    page.mouse.up()
    assert value(playing, "q of ·blue") < before - 0.05
    assert sum(value(playing, name) for name in names[6:]) == pytest.approx(1, abs=0.04)
    held = value(playing, "q of ·blue")
    for key, change in (("ArrowUp", 0.01), ("PageUp", 0.1), ("ArrowDown", -0.01)):
        page.keyboard.press(key)
        held += change
        assert value(playing, "q of ·blue") == pytest.approx(held, abs=0.011), key
    page.keyboard.press("ArrowRight")
    expect(handle(playing, "q of ·clear")).to_be_focused()
    page.keyboard.press("Home")
    assert value(playing, "q of ·clear") == 0
    expect(page.locator(".svp-plot [tabindex='0']")).to_have_count(2)
    shared = sum(min(value(playing, f"p{name[1:]}"), value(playing, name)) for name in names[6:])
    assert float(readouts(playing)[0]) == pytest.approx(shared, abs=0.04)


def test_a_thousand_coins_pile_up_to_p(playing):
    playing.button("Bad").click()
    playing.button("Drop a thousand").click()
    expect(playing.page.locator(".svp-said")).to_contain_text("1000 coins")
    assert float(readouts(playing)[1]) < 0.09
    playing.button("Clear").click()
    assert readouts(playing)[1] == "–"


def test_the_first_task_can_be_done_and_its_pinned_bars_do_not_move(playing):
    page = playing.page
    playing.button("Try it").click()
    for pinned in ("p of ·blue", "q of ·clear"):
        before = value(playing, pinned)
        handle(playing, pinned).focus()
        page.keyboard.press("PageUp")
        assert value(playing, pinned) == before
    for name, wanted in 2 * [("q of ·low", 0.04), ("q of ·full", 0.06), ("q of ·dark", 0.11), ("q of ·grey", 0.15)]:
        handle(playing, name).focus()
        while value(playing, name) > wanted:
            page.keyboard.press("ArrowDown")
    expect(page.locator(".svp-task [role=status]")).to_contain_text("Done.")


def test_a_preset_gives_a_task_up_and_unpins_its_bars(playing):
    task = playing.page.locator(".svp-task")
    playing.button("Try it").click()
    expect(task).to_have_attribute("data-state", "on")
    playing.button("Sure").click()
    assert task.get_attribute("data-state") is None
    expect(playing.page.locator(".svp-plot [aria-disabled]")).to_have_count(0)
    playing.button("Drop a coin").click()
    expect(playing.page.locator(".svp-readout small").nth(1)).to_contain_text("after 1 coin")
    tops = "all => Math.min(...all.map((one) => one.getBoundingClientRect().top))"
    floor, piles = (
        playing.page.eval_on_selector_all(f".svp-{kind}", tops)
        for kind in ("floor", "board :is(.svp-pile-kept, .svp-pile-fresh)")
    )
    assert piles > floor + 50, "one coin's pile stays in its panel"


def test_acceptance_beyond_p_is_paid_in_distortion(playing):
    playing.button("Look-alikes").click()
    accepted, moved = map(float, readouts(playing))
    assert moved > 0.1
    playing.page.get_by_role("slider", name="λ, the most a code may gain").fill("1")
    strict, exact = map(float, readouts(playing))
    assert exact == 0 and accepted - strict == pytest.approx(moved, abs=0.011)


def test_judging_siblings_by_p_every_time_is_seen_to_be_wrong(playing):
    playing.button("A tree").click()
    playing.button("Bad").click()
    assert readouts(playing)[1] == "0"
    playing.button("by p every time").click()
    assert float(readouts(playing)[1]) > 0.1
    playing.button("Draw the siblings").click()
    expect(playing.page.locator(".svp-said")).not_to_be_empty()


def test_the_laboratory_moves_its_optimum_and_has_the_page_s_own_run(playing):
    page = playing.page
    playing.button("What it costs").click()
    best = page.locator(".svp-best-label").first
    expect(best).to_contain_text("at γ = 5")
    page.get_by_role("slider", name="Drafting, per level").fill("0.4")
    expect(best).to_contain_text("at γ = 1")
    cursor = handle(playing, "Draft length γ")
    cursor.focus()
    page.keyboard.press("End")
    expect(cursor).to_have_attribute("aria-valuenow", "12")
    formula = page.locator(".svp-formula").inner_text()
    speed, tau, *spent = [float(word.rstrip("×")) for word in formula.split() if word[0].isdigit()]
    assert speed == pytest.approx(tau / sum(spent), abs=0.02)
    run = page.locator(".svp-own button").first
    said = run.inner_text()
    run.click()
    expect(page.locator(".svp-ask p")).to_contain_text(f"measured {said.split(': ')[1]}")
    expect(page.get_by_label("What a pass costs")).to_have_value("page")


def test_the_laboratory_keeps_the_runs_of_the_visit(newcomer):
    newcomer.tab("Play")
    newcomer.button("What it costs").click()
    runs = newcomer.page.locator(".svp-own button")
    before = runs.all_inner_texts()
    newcomer.tab("Text")
    newcomer.pick("#sp-recording", "A run of stand")
    newcomer.until(f"{newcomer.stage()}.feed.name === 'stand'")
    newcomer.tab("Play")
    expect(runs).to_have_count(len(before) + 1)
    after = runs.all_inner_texts()
    assert after[0].startswith("STAND: ") and set(before) < set(after), "the run in sight first, and none is lost"
    newcomer.tab("Text")
    newcomer.pick("#sp-recording", "A run of speculative_sampling")
    newcomer.until(f"{newcomer.stage()}.feed.name === 'speculative_sampling'")
    newcomer.tab("Play")
    expect(runs.filter(has_text="STAND: ")).to_have_count(1)


def test_this_machine_is_a_choice_once_it_has_timed_passes_and_then_the_first(playing, cache):
    page, choice = playing.page, playing.page.get_by_label("What a pass costs")
    playing.button("What it costs").click()
    here = choice.locator("option[value=here]")
    expect(here).to_have_text("This machine, not measured yet")
    assert here.is_disabled() and choice.input_value() == "cores"
    key = {
        "device": f"cpu {HARDWARE['name']}",
        "rows": "1",
        "threads": "2",
        "dtype": "torch.float32",
        "model": "small of 64 tokens",
    }
    entry = {"logs": [2 + 0.1 * place for place in range(9)], "spread": [0.0] * 7 + [0.5] * 2, "forwards": {}, "at": 1.8e9}
    (cache / FILE).write_text(json.dumps({"version": VERSION, "models": {json.dumps(key): entry}}), encoding="utf-8")
    try:
        playing.tab("Text")
        playing.tab("Play")
        expect(choice).to_have_value("here")
        expect(here).to_have_text("This machine, measured")
        source = page.locator(".svp-source")
        expect(source).to_contain_text(
            "7.39, 8.17, 9.03, 9.97, 11, 12.2, 13.5 ms for 1, 2, 4, 8, 16, 32, 64 rows; cpu AMD EPYC 7763"
        )
        expect(source).to_contain_text("threads: 2, small of 64 tokens, float32")
        playing.button("Server").click()
        expect(choice).to_have_value("roof")
        playing.button("Head").click()
        expect(choice).to_have_value("here")
        choice.select_option("cores")
        playing.tab("Text")
        playing.tab("Play")
        page.wait_for_timeout(500)
        assert choice.input_value() == "cores", "a choice by hand stays"
    finally:
        (cache / FILE).unlink()


def test_the_hidden_optimum_is_found_by_looking(playing):
    page = playing.page
    playing.button("What it costs").click()
    playing.button("Try it").click()
    expect(page.locator(".svp-point")).to_have_count(2)  # one look, and one on the cost of a pass
    cursor, status = handle(playing, "Draft length γ"), page.locator(".svp-task [role=status]")
    for depth in range(1, 13):
        playing.button("It pays most here").click()
        if "Found." in status.inner_text():
            break
        expect(page.locator(".svp-formula")).to_contain_text("There is a better one.")
        cursor.focus()
        page.keyboard.press("ArrowRight")
        expect(cursor).to_have_attribute("aria-valuenow", str(depth + 1))
    expect(status).to_contain_text("Found.")


def test_links_open_a_level_and_leaving_the_tab_forgets_it(browser, url):
    with closing(AppPage(browser, url, "?tab=play&play=cost")) as linked:
        expect(linked.page.locator(".svp-nav [aria-current=true]")).to_have_text("What it costs")
        linked.button("A tree").click()
        linked.until("location.search.includes('play=tree')")
        linked.tab("Learn")
        linked.until("!location.search.includes('play=')")
        expect(linked.page.locator(".sp-lesson")).to_be_visible()
        linked.page.evaluate("""() => {
          const link = document.createElement("a");
          link.href = "?tab=play&play=chain";
          document.querySelector(".sp-masthead").append(link);
          link.click();
        }""")
        expect(linked.page.locator(".svp-nav [aria-current=true]")).to_have_text("A chain")
        expect(linked.page.get_by_role("tab", name="Play")).to_have_attribute("aria-selected", "true")


def test_every_level_fits_a_phone_and_a_finger_drags(browser, url):
    with closing(AppPage(browser, url, "?tab=play", viewport=PHONE, has_touch=True, is_mobile=True)) as phone:
        expect(phone.page.locator(".svp-level")).to_be_visible()
        zone = phone.page.locator(".svp-zone").nth(1)
        box = zone.bounding_box()
        assert box["width"] >= 25
        touch = phone.context.new_cdp_session(phone.page)
        before = value(phone, "q of ·blue")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.9
        for kind, spots in (("touchStart", [{"x": x, "y": y - 80}]), ("touchMove", [{"x": x, "y": y}]), ("touchEnd", [])):
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": spots})
        phone.until(f"document.querySelector('[aria-label=\"q of ·blue\"]').getAttribute('aria-valuenow') !== '{before:.2f}'")
        for level in ("A chain", "A tree", "Look-alikes", "What it costs", "One token"):
            phone.button(level).click()
            assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390, level
            heights = phone.page.eval_on_selector_all(".svp button", "all => all.map((one) => one.offsetHeight).filter(Boolean)")
            assert min(heights) >= 40, level


def test_a_lesson_opens_a_level_in_place_of_its_run(browser, url):
    with closing(AppPage(browser, url, "?tab=learn&lesson=03-chance&at=4", reduced_motion="reduce")) as lesson:
        page, level = lesson.page, lesson.page.locator(".sp-try .svp-level")
        page.locator(".sp-guess label").first.click()
        lesson.button("Reveal").click()
        link, stage = page.get_by_role("link", name="See it as areas"), page.locator("#sp-lesson .specviz").first
        link.click()
        expect(level).to_be_visible()
        expect(stage).to_be_hidden()
        lesson.button("Drop a coin").click()
        expect(page.locator(".sp-try .svp-said")).to_contain_text("was drafted")
        assert page.locator(".sp-try .svp-nav").count() == 0 and "play=" not in page.url
        lesson.button("Back to the recorded run").click()
        expect(level).to_be_hidden()
        expect(stage).to_be_visible()
        link.click()
        expect(level).to_be_visible()
        lesson.button("Next").click()
        expect(level).to_be_hidden()
