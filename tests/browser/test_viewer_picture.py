"""The picture pane of an image run in a real browser: it fills as the run plays, and cells and tree nodes find each other."""

import json
import re

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from specviz.trace import store
from tests.support.traces.image_runs import GRID, image_trace

pytestmark = pytest.mark.browser

CODES = GRID * GRID
PAINTED = """(() => { const canvas = document.querySelector('.sv-pixels');
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let found = 0; for (let at = 3; at < data.length; at += 4) found += data[at] > 0;
  return found / (data.length / 4); })()"""
SIGNS = """(kind) => [...document.querySelectorAll('.sv-picture-marks .sv-cell-mark' + kind)]
  .reduce((sum, one) => sum + one.getAttribute('d').split('M').length - 1, 0)"""
PAUSED = f"""() => new Promise((resolve) => {{
  const look = () => {{
    const painted = {PAINTED};
    if (painted <= 0.05) return requestAnimationFrame(look);
    stage.stage.player.pause();
    resolve(painted);
  }};
  look();
}})"""
"""The painted share of the picture, once there is any; the run then stands still."""
PIXELS = "document.querySelector('.sv-pixels').toDataURL()"


def text(method="lantern_pp"):
    return store.text(image_trace(method))


def places(trace):
    """Which step, and which of its nodes, wrote each cell."""
    found = {}
    for step in trace.steps:
        kept = [(step.nodes[node].grid, node) for node in step.path]
        for (row, column), node in [*kept, *([(step.bonus.grid, "bonus")] if step.bonus else [])]:
            found[row * GRID + column] = (step.index, node)
    return found


def click_cell(tab, place):
    box = tab.page.locator(".sv-picture-marks").bounding_box()
    row, column = divmod(place, GRID)
    tab.page.mouse.click(box["x"] + (column + 0.5) * box["width"] / GRID, box["y"] + (row + 0.5) * box["height"] / GRID)


def signs(tab, kind=""):
    """How many outlines the marks of a kind have."""
    return tab.page.evaluate(SIGNS, f".sv-is-{kind}" if kind else "")


def cell_of(tab, mark):
    """The cell that a mark stands on, from where the browser put it."""
    inside = tab.page.locator(mark).bounding_box()
    frame = tab.page.locator(".sv-picture-box").bounding_box()
    column = (inside["x"] + inside["width"] / 2 - frame["x"]) / frame["width"] * GRID
    row = (inside["y"] + inside["height"] / 2 - frame["y"]) / frame["height"] * GRID
    return int(row) * GRID + int(column)


def test_the_grid_fills_while_a_recorded_run_plays(show):
    tab = show(text(), autoplay=True, speed=0.02)
    head = tab.page.locator(".sv-picture .sv-card-title")
    assert tab.run(PAUSED) < 0.9
    tab.run("() => stage.stage.flush()")
    some = int(re.findall(r"code (\d+) of", head.inner_text())[0])
    assert 0 < some < CODES
    tab.run("() => { stage.stage.player.speed = 10; stage.stage.player.play(); }")
    expect(head).to_have_text(f"Picture · code {CODES} of {CODES}")
    tab.until(f"{PAINTED} === 1")
    tab.go(0)
    first = len(image_trace().steps[0].emitted)
    expect(head).to_have_text(f"Picture · code {first} of {CODES}")
    assert tab.run(PAINTED) == pytest.approx(first / CODES, abs=0.01)


def test_every_cell_is_marked_with_how_it_came_to_be(show):
    tab, trace = show(text()), image_trace()
    tab.go(len(trace.steps) - 1)
    tab.run("stage.pick(stage.stage.node); stage.flush()")
    kept = [step.nodes[node].status for step in trace.steps for node in step.path]
    again = sum(bool(step.bonus and step.bonus.source == "residual") for step in trace.steps)
    own = CODES - len(kept) - again
    assert signs(tab, "accepted") == kept.count("accepted")
    assert signs(tab, "relaxed") == 2 * kept.count("relaxed")
    assert signs(tab, "resampled") == again
    assert signs(tab, "bonus") == own
    said = f"{kept.count('accepted')} strict, {kept.count('relaxed')} relaxed, {again} resampled, {own} bonus"
    expect(tab.page.locator(".sv-picture-marks")).to_have_attribute("aria-label", re.compile(re.escape(said)))
    assert tab.page.locator(".sv-picture-summary > span").all_inner_texts()[:4] == said.split(", ")


def test_a_click_on_a_cell_selects_its_step_and_its_node(show):
    tab, found = show(text()), places(image_trace())
    tab.go(len(image_trace().steps) - 1)
    drafted = next(place for place, (_, node) in found.items() if node != "bonus" and place > GRID)
    bonus = next(place for place, (_, node) in found.items() if node == "bonus" and place > drafted)
    for place in (drafted, bonus):
        click_cell(tab, place)
        index, node = found[place]
        tab.until(f"stage.stage.cursor === {index} && String(stage.stage.node) === '{node}'")
        expect(tab.page.locator(f'.sv-tree [data-id="{node}"][aria-selected="true"]')).to_have_count(1)
        tab.go(len(image_trace().steps) - 1)


def test_a_click_on_a_node_frames_its_cell_or_where_it_would_have_gone(show):
    tab, trace = show(text()), image_trace()
    step = next(step for step in trace.steps if step.path and any(one.status == "rejected" for one in step.nodes))
    tab.go(step.index)
    lost = next(at for at, one in enumerate(step.nodes) if one.status == "rejected")
    for node, mark in ((step.path[0], ".sv-chosen-cell"), (lost, ".sv-rejected-cell")):
        tab.page.locator(f'.sv-tree [data-id="{node}"]').click()
        grid = step.nodes[node].grid
        expect(tab.page.locator(f".sv-picture {mark}")).to_have_count(1)
        assert cell_of(tab, f".sv-picture {mark}") == grid[0] * GRID + grid[1]


def test_the_plain_picture_has_no_marks_and_the_same_pixels(show):
    tab = show(text())
    tab.go(len(image_trace().steps) - 1)
    tab.until(f"{PAINTED} === 1")
    before = tab.run(PIXELS)
    tab.run("stage.pick(stage.stage.node); stage.flush()")
    assert signs(tab) > CODES / 2
    toggle = tab.page.locator(".sv-verdict-toggle")
    toggle.click()
    expect(tab.page.locator(".sv-picture-marks .sv-cell-mark")).to_have_count(0)
    expect(toggle).to_have_attribute("aria-pressed", "true")
    assert tab.run(PIXELS) == before
    tab.page.locator(".specviz").focus()
    tab.page.keyboard.press("v")
    expect(toggle).to_have_attribute("aria-pressed", "false")
    assert signs(tab) > CODES / 2


def test_a_finished_picture_is_shown_clean_until_somebody_looks_into_its_last_step(show):
    tab = show(text())
    marks = tab.page.locator(".sv-picture-marks .sv-cell-mark")
    tab.go(tab.steps() - 2)
    expect(marks).not_to_have_count(0)
    tab.go(tab.steps() - 1)
    expect(marks).to_have_count(0)
    tab.run("stage.pick(stage.stage.node)")
    expect(marks).not_to_have_count(0)
    tab.page.locator(".sv-verdict-toggle").click()
    expect(marks).to_have_count(0)
    tab.go(0)
    expect(marks).to_have_count(0)


def test_a_code_is_shown_as_its_patch_wherever_it_is_named(show):
    tab, trace = show(text()), image_trace()
    step = next(step for step in trace.steps if step.path and step.bonus)
    tab.go(step.index)
    for node in (str(step.path[0]), "bonus"):
        group = tab.page.locator(f'.sv-tree [data-id="{node}"]')
        expect(group.locator("image")).to_have_count(1)
        expect(group.locator("text")).to_have_text([""])
    tab.run("stage.stage.set({ tab: 'verdict' }); stage.flush()")
    tab.page.locator(f'.sv-tree [data-id="{step.path[0]}"]').click()
    heading = tab.page.locator(".sv-verdict h3")
    expect(heading.locator("img")).to_have_attribute("alt", f"code {step.nodes[step.path[0]].token}")
    assert tab.run("document.querySelector('.sv-verdict img').naturalWidth") == 2
    assert "#" not in tab.page.locator(".sv-explanation").first.inner_text()
    tab.page.locator(f'.sv-tree [data-id="{step.path[0]}"]').hover()
    expect(tab.page.locator(".sv-tooltip")).to_contain_text("mean over decoded pictures")


DISSOLVING = "() => document.querySelector('.sv-coarse-draft').getAnimations().length"


@pytest.mark.parametrize("calm", [False, True])
def test_the_coarse_draft_dissolves_into_the_picture_unless_motion_is_unwelcome(show, calm):
    tab = show(text("mulo_sd"), context={"reduced_motion": "reduce" if calm else "no-preference"})
    tab.go(tab.steps() - 1)
    draft = tab.page.locator(".sv-coarse-draft")
    if calm:
        assert tab.run(DISSOLVING) == 0
    else:
        assert tab.run(DISSOLVING) == 1
        tab.run("() => { for (const one of document.querySelector('.sv-coarse-draft').getAnimations()) one.finish(); }")
    expect(draft).to_have_css("opacity", "0")


def test_another_limit_marks_what_would_be_lost_in_the_tree_and_is_forgotten_with_the_run(show):
    tab, trace = show(text()), image_trace()
    step = next(step for step in trace.steps if any(step.nodes[node].status == "relaxed" for node in step.path))
    tab.go(step.index)
    slider = tab.page.locator(".sv-rejudge input")
    slider.fill("1")
    lost = len(step.path) - next(at for at, node in enumerate(step.path) if step.nodes[node].status == "relaxed")
    expect(tab.page.locator(".sv-tree .sv-would-lose")).to_have_count(lost)
    expect(tab.page.locator(".sv-rejudge")).to_contain_text("With λ = 1 this step keeps")
    tab.go(step.index + 1)
    expect(slider).to_have_value("1")
    tab.run(f"stage.update({json.dumps(text('lantern'))})")
    tab.go(0)
    expect(slider).to_have_value("0.3")
