"""The stories of trained drafters in a real browser: drawn at every step, moved by keyboard, legible, deaf to markup."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from specviz.trace import store
from tests.support.pages.stage import PHONE, PROJECTOR, Open, StagePage
from tests.support.traces.made import hostile
from tests.support.traces.stories import TELLERS, story_trace

pytestmark = pytest.mark.browser

OPEN = "stage.stage.set({ tab: 'method' }); stage.flush()"
TITLES = {
    "growth": "Expand and rerank", "mass": "Beam mass", "traversal": "Leaf to root", "reward": "Tree reward",
    "blocks": "Blocks", "heads": "Independent heads", "typical": "Typical acceptance",
    "denoised": "Masks resolved", "lattice": "Lattice search",
    "ssm_mask": "Decay mask", "last_state": "τ by text length", "arms": "Drafter selection",
}  # fmt: skip


def text(method: str, **more: Any) -> str:
    return "".join(line + "\n" for line in store.lines(story_trace(method, **more)))


def told(tab: StagePage, note: str) -> None:
    """Show one story."""
    tab.run("(selectedNote) => { stage.stage.set({ tab: 'method', selectedNote }); stage.flush(); }", note)


@pytest.mark.parametrize("method", TELLERS)
def test_every_story_is_drawn_at_every_step_and_none_falls_back_to_a_list(show: Open, method: str) -> None:
    tab = show(text(method, steps=6))
    for step in range(6):
        tab.go(step)
        for note in tab.run("stage.stage.step.notes.map((note) => note.type)"):
            told(tab, note)
            expect(tab.page.locator(".sv-tabs")).to_contain_text(TITLES[note])
            assert tab.run("document.querySelectorAll('.sv-note .sv-raw-note').length") == 0
            assert "NaN" not in tab.run("document.querySelector('.sv-note').outerHTML")
            assert tab.run("document.querySelector('.sv-note .sv-explanation').textContent.length") > 20


def test_the_story_of_growth_moves_by_keyboard_from_expand_to_verdict(show: Open) -> None:
    tab = show(text("eagle2"))
    tab.run(OPEN)
    slider = tab.page.get_by_label("Event")
    expect(slider).to_have_attribute("aria-valuetext", "Rerank")
    expect(tab.page.locator(".sv-note")).to_contain_text("the best 59 lie above")
    slider.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "Expand, level 1")
    first = tab.page.locator(".sv-note [data-id]").count()
    slider.press("ArrowRight")
    assert tab.page.locator(".sv-note [data-id]").count() > first
    expect(tab.page.locator(".sv-note")).to_contain_text("the 10 ringed tokens of level 1")
    assert tab.step() == 0, "the arrow moved the story, not the run"
    slider.press("End")
    expect(tab.page.locator(".sv-note .sv-accepted-line").first).to_be_attached()
    tab.go(1)
    expect(tab.page.get_by_label("Event")).to_have_attribute("aria-valuetext", "Verdict")


def test_a_story_plays_to_its_end_and_stops(show: Open) -> None:
    tab = show(text("falcon"))
    tab.run(OPEN)
    tab.page.get_by_role("button", name="Play this step").click()
    expect(tab.page.locator(".sv-scrubber-label")).to_have_text("Pass 1")
    expect(tab.page.locator(".sv-tree .sv-current-band")).to_have_count(1)
    assert tab.run("document.querySelectorAll('.sv-tree .sv-dim').length") > 10, "later levels are not written yet"
    expect(tab.page.locator(".sv-scrubber-label")).to_have_text("Pass 3")
    expect(tab.page.get_by_role("button", name="Play this step")).to_be_visible()


def test_of_two_stories_one_is_chosen_and_stays_chosen(show: Open) -> None:
    tab = show(text("ddd"))
    tab.run(OPEN)
    note = tab.page.locator(".sv-note")
    expect(note).to_contain_text("growing stops")
    expect(tab.page.locator(".sv-tree .sv-axis")).to_have_count(1)
    tab.page.get_by_role("button", name="Expand and rerank").click()
    expect(note).to_contain_text("candidates compete")
    expect(tab.page.locator(".sv-tree .sv-axis")).to_have_count(0)
    tab.go(1)
    expect(note).to_contain_text("candidates compete")
    tab.page.get_by_role("tab", name="Verdict").click()
    expect(tab.page.locator(".specviz")).not_to_have_attribute("data-roomy", "")


def test_the_cursor_of_the_traversal_walks_the_tree(show: Open) -> None:
    tab = show(text("traversal"))
    tab.go(2)
    tab.run(OPEN)
    expect(tab.page.locator(".sv-note")).to_contain_text("going up from the leaves rescued 1 token")
    slider = tab.page.get_by_label("Event")
    slider.press("Home")
    expect(tab.page.locator(".sv-tree .sv-cursor")).to_have_count(1)
    expect(tab.page.locator(".sv-tree .sv-gauge")).to_have_count(1)
    slider.press("ArrowRight")
    expect(tab.page.locator(".sv-tree .sv-gauge")).to_have_count(2)
    tab.page.get_by_role("tab", name="Verdict").click()
    expect(tab.page.locator(".sv-tree .sv-gauge")).to_have_count(0)


def test_a_mark_in_the_picture_picks_its_node(show: Open) -> None:
    tab = show(text("medusa"))
    told(tab, "typical")
    tab.page.locator('.sv-note [data-id="2"]').click(force=True)
    assert tab.run("stage.stage.node") == 2
    name = tab.run("stage.stage.step.nodes[2].text").replace(" ", "·")
    expect(tab.page.locator(".sv-note .sv-explanation")).to_contain_text(f"“{name}” has p")


def test_pruned_nodes_are_one_count_until_somebody_asks(show: Open) -> None:
    tab = show(text("eagle2"))
    pruned = tab.run("stage.stage.step.counts.cut")
    chip = tab.page.locator('.sv-tree [data-id="chippruned"]')
    expect(chip).to_contain_text(f"{pruned} pruned")
    expect(chip).to_have_attribute("aria-label", f"{pruned} pruned before the pass, press Enter to open")
    chip.click()
    tab.run("stage.flush()")
    assert tab.page.locator(".sv-tree .sv-node.sv-is-pruned").count() == 96


@pytest.mark.parametrize("size", [PROJECTOR, PHONE])
def test_stories_are_legible_and_stay_inside_their_pane(show: Open, size: dict[str, int]) -> None:
    for method in TELLERS:
        tab = show(text(method, steps=3), size=size)
        for note in tab.run("stage.stage.step.notes.map((note) => note.type)"):
            told(tab, note)
            small = tab.run("""() => [...document.querySelectorAll('.sv-note *')]
              .filter((one) => [...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
              .filter((one) => parseFloat(getComputedStyle(one).fontSize) < 11).map((one) => one.textContent)""")
            assert small == [], note
            outside = tab.run("""() => {
              const pane = document.querySelector('.sv-note').getBoundingClientRect();
              const rolls = (one) => one.matches('.sv-note') ? false :
                ['auto', 'scroll'].includes(getComputedStyle(one).overflowX) || rolls(one.parentElement);
              return [...document.querySelectorAll('.sv-note svg text')].filter((one) => !rolls(one))
                .map((one) => one.getBoundingClientRect())
                .filter((box) => box.left < pane.left - 3 || box.right > pane.right + 3).length; }""")
            assert outside == 0, note
        assert tab.run("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("method", TELLERS)
def test_whatever_a_story_says_stays_text(show: Open, method: str) -> None:
    lines = store.lines(hostile(story_trace(method, steps=2)))
    tab = show("".join(line.encode("utf-8", "replace").decode() + "\n" for line in lines))
    for note in tab.run("stage.stage.step.notes.map((note) => note.type)"):
        told(tab, note)
        assert tab.run("document.querySelectorAll('.specviz img, .specviz script, .specviz h1').length") == 0
    assert tab.run("window.hacked") is None


def test_a_damaged_story_is_listed_and_the_tree_stays(show: Open) -> None:
    broken = text("falcon", steps=1).replace('"width":2', '"width":"x"').replace('"depths":[1,2]', '"depths":7')
    broken = broken.replace('"nodes":[1,', '"nodes":[{"a":1},')
    tab = show(broken)
    tab.run(OPEN)
    assert tab.run("document.querySelectorAll('.sv-tree [data-id]').length") > 20


def test_the_decay_mask_follows_the_pointer_over_the_tree_and_back(show: Open) -> None:
    tab = show(text("stree"))
    told(tab, "ssm_mask")
    note = tab.page.locator(".sv-note")
    tab.page.locator('svg.sv-tree [data-id="12"]').hover()
    path = tab.run("(() => { const p = [12]; while (stage.stage.step.nodes[p[0]].parent >= 0)"
                   " p.unshift(stage.stage.step.nodes[p[0]].parent); return p; })()")  # fmt: skip
    expect(note).to_contain_text(f"The decays of {len(path)} nodes")
    rings = tab.page.locator(".sv-tree .sv-tree-overlay .sv-tap-ring, .sv-tree .sv-tree-overlay .sv-path-ring")
    expect(rings).to_have_count(len(path))
    tab.page.locator('.sv-decay-note [data-id="0"]').hover()
    expect(note).to_contain_text("reads the node itself and 3 inputs from before the root")
    expect(rings).to_have_count(1)
    expect(note).to_contain_text("kept for the replay")


def test_heads_of_the_decay_mask_fade_more_or_less(show: Open) -> None:
    tab = show(text("stree"))
    told(tab, "ssm_mask")
    slider = tab.page.get_by_label("Event")
    shares = []
    for key in ("Home", "ArrowRight", "End"):
        slider.press(key)
        shares.append(tab.run("Number(document.querySelectorAll('.sv-carried')[12].getAttribute('fill-opacity'))"))
    assert shares[0] > shares[1] > shares[2]
