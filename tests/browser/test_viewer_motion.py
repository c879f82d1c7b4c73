"""One step as a motion: what it shows when, what stops it, what it costs, and that it ends in the picture of every day."""

from pathlib import Path

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from specviz.trace import store
from tests.support.traces.samples import lines, sample_trace
from tests.support.viewer import cases

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
SEEK = "([step, t]) => { stage.stage.seek(step, t); stage.flush(); }"


def seek(tab, step, t):
    tab.run(SEEK, [step, t])


def test_slow_motion_plays_one_step_and_ends_in_the_usual_picture(show):
    tab = show(cases.trace(cases.bushy(0), cases.bushy(1)))
    picture = "document.querySelector('.sv-tree').outerHTML.replace(/sv-hatch-\\d+/g, '')"
    tab.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))")
    usual = tab.run(picture)
    tab.page.locator(".specviz").focus()
    tab.page.keyboard.press("a")
    expect(tab.page.get_by_role("button", name="Animate step")).to_have_attribute("aria-pressed", "true")
    expect(tab.page.locator(".sv-phase-label")).to_contain_text("Drafting")
    tab.page.keyboard.press(" ")
    expect(tab.page.get_by_role("button", name="Play")).to_be_visible()
    assert 0 < tab.run("stage.stage.within") < 1
    tab.page.keyboard.press(" ")
    tab.until("!stage.stage.player.playing && stage.stage.within === 1")
    assert tab.step() == 0
    tab.run("stage.flush()")
    assert tab.run(picture) == usual
    expect(tab.page.locator(".sv-phase-label")).to_have_text("Committed: 4 tokens")
    tab.page.keyboard.press("ArrowRight")
    assert tab.step() == 1 and tab.run("stage.stage.player.playing") is True
    tab.page.keyboard.press("a")
    tab.run("stage.flush()")
    assert tab.run("[stage.stage.within, stage.stage.player.playing]") == [1, False]
    expect(tab.page.locator(".sv-step-clock")).to_be_hidden()


def test_the_clocks_can_be_dragged_and_stepped_through(show):
    tab = show(cases.trace(cases.chain(0, 4, 2), cases.chain(1, 4, 2)))
    tab.page.get_by_role("button", name="Animate step").click()
    tab.page.get_by_label("Step", exact=True).fill("1.4")
    assert tab.step() == 1 and tab.run("stage.stage.within") == pytest.approx(0.4)
    label = tab.page.locator(".sv-phase-label")
    expect(label).to_have_text("Verifying: one pass over 4 nodes")
    clock = tab.page.get_by_label("Time within the step")
    clock.fill("0.2")
    expect(label).to_have_text("Drafting, level 3 of 4")
    expect(clock).to_have_attribute("aria-valuetext", "Drafting, level 3 of 4")
    clock.focus()
    told = []
    for _ in range(6):
        tab.page.keyboard.press("ArrowRight")
        tab.run("stage.flush()")
        told.append(label.text_content())
    assert told == [
        "Drafting, level 4 of 4", "Verifying: one pass over 4 nodes", "Judging, verdict 1 of 3", "Judging, verdict 2 of 3",
        "Judging, verdict 3 of 3", "Committed: 3 tokens",
    ]  # fmt: skip
    tab.page.keyboard.press("ArrowLeft")
    tab.run("stage.flush()")
    expect(tab.page.locator(".sv-verdict")).to_contain_text("Rejected · depth 3")
    assert tab.page.locator(".sv-step-clock").get_attribute("title") is not None
    expect(tab.page.locator(".sv-scale")).to_contain_text("Teaching scale: draft 34 %")


def test_the_text_comes_into_the_output_with_the_commit(show):
    tab = show(cases.trace(cases.chain(0, 4, 2)))
    shown = "[...document.querySelectorAll('.sv-strip .sv-token')].map((one) => getComputedStyle(one).visibility === 'visible')"
    seek(tab, 0, 0.7)
    assert tab.run(shown) == [False] * 3
    seek(tab, 0, 0.84)
    assert tab.page.locator(".sv-flight").count() == 3
    assert False in tab.run(shown)
    boxes = []
    for t in (0.82, 0.85, 0.9):
        seek(tab, 0, t)
        box = tab.page.locator(".sv-flight").first.bounding_box()
        boxes.append(box["y"] if box else 0)
    assert boxes == sorted(boxes, reverse=True)
    seek(tab, 0, 0.97)
    assert tab.run(shown) == [True] * 3
    seek(tab, 0, 1)
    assert tab.run(shown) == [True] * 3
    expect(tab.page.locator(".sv-flight")).to_have_count(0)


def test_a_picture_gets_its_codes_with_the_commit(show):
    tab = show(store.unpacked(ROOT / "assets" / "traces" / "mulo_sd.spectrace.jsonl.gz").decode("utf-8"))
    head = tab.page.locator(".sv-picture .sv-card-title")
    before = tab.run("stage.stage.trace.steps[0].emitted.length + stage.stage.trace.steps[1].emitted.length")
    seek(tab, 2, 0.6)
    expect(head).to_contain_text(f"code {before} of 256")
    seek(tab, 2, 0.9)
    expect(head).to_contain_text(f"code {before + tab.run('stage.stage.step.emitted.length')} of 256")


def test_it_is_off_for_a_reader_who_wants_less_motion(show):
    tab = show(context={"reduced_motion": "reduce"}, speed=0.02)
    expect(tab.page.get_by_role("button", name="Animate step")).to_be_disabled()
    tab.page.locator(".specviz").focus()
    tab.page.keyboard.press("a")
    tab.page.keyboard.press(" ")
    tab.page.wait_for_timeout(200)
    assert tab.run("[stage.stage.slow, stage.stage.within, stage.stage.player.playing]") == [False, 1, True]
    expect(tab.page.locator(".sv-step-clock")).to_be_hidden()


def test_slow_playback_moves_and_fast_playback_does_not(show):
    tab = show(autoplay=True, speed=0.02)
    expect(tab.page.locator(".sv-step-clock")).to_be_visible()
    tab.until("stage.stage.within < 1")
    tab.page.get_by_label("Playback speed").select_option("1")
    tab.until("stage.stage.cursor > 2")
    expect(tab.page.locator(".sv-step-clock")).to_be_hidden()
    assert tab.run("stage.stage.within") == 1


def test_a_live_run_is_not_slowed_down(show):
    tab = show("")
    tab.run("stage.stage.slow = true")
    tab.follow([])
    for line in lines(sample_trace(12))[:12]:
        tab.run("(line) => { give(line); stage.flush(); }", line)
    assert tab.run("[stage.stage.cursor, stage.stage.within, stage.stage.follow]") == [10, 1, True]


def test_a_frame_of_a_large_tree_has_nothing_laid_out(show):
    """The figure this prints is the script's part of a frame; that no frame within a moment is laid out is asserted."""
    tab = show(store.unpacked(ROOT / "assets" / "traces" / "token_recycling.spectrace.jsonl.gz").decode("utf-8"))
    measured = tab.page.context.new_cdp_session(tab.page)
    measured.send("Performance.enable")

    def layouts():
        return int(
            next(one["value"] for one in measured.send("Performance.getMetrics")["metrics"] if one["name"] == "LayoutCount")
        )

    frames = """async ([from, to]) => {
      for (let at = 0; at < 20; at += 1) {
        await new Promise((drawn) => requestAnimationFrame(drawn));
        performance.mark("frame");
        stage.stage.at(3, from + ((to - from) * at) / 20);
        stage.flush();
        performance.measure("motion", "frame");
      }
      const times = performance.getEntriesByName("motion").map((one) => one.duration).sort((a, b) => a - b);
      return [times[times.length >> 1], times.at(-1)];
    }"""
    assert tab.run("stage.stage.trace.steps[3].nodes.length") >= 60
    for phase, (start, stop) in {"verify": (0.36, 0.5), "commit": (0.8, 0.97)}.items():
        seek(tab, 3, start)
        tab.run(frames, [start, start])
        before = layouts()
        median, most = tab.run(frames, [start, stop])
        print(f"{phase}: {median:.2f} ms of script a frame, at most {most:.2f} ms")
        assert layouts() - before <= 2, phase
