"""The stories of trained drafters in a real browser: drawn at every step, moved by keyboard, legible, deaf to markup."""

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from specviz.trace import store
from tests.support.traces.recordings import beginning

pytestmark = pytest.mark.browser

OPEN = "stage.stage.set({ tab: 'method' }); stage.flush()"


def text(method, steps=8):
    return store.text(beginning(method, steps))


def told(tab, note):
    """Show one story."""
    tab.run("(selectedNote) => { stage.stage.set({ tab: 'method', selectedNote }); stage.flush(); }", note)


def test_the_story_of_growth_moves_by_keyboard_from_expand_to_verdict(show):
    tab = show(text("eagle2"))
    tab.run(OPEN)
    slider = tab.page.get_by_label("Event")
    expect(slider).to_have_attribute("aria-valuetext", "Rerank")
    first_step = beginning("eagle2").steps[0]
    expect(tab.page.locator(".sv-note")).to_contain_text(f"the best {first_step.verified} lie above")
    slider.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "Expand, level 1")
    first = tab.page.locator(".sv-note [data-id]").count()
    slider.press("ArrowRight")
    assert tab.page.locator(".sv-note [data-id]").count() > first
    expect(tab.page.locator(".sv-note")).to_contain_text("ringed tokens of level 1")
    assert tab.step() == 0, "the arrow moved the story, not the run"
    slider.press("End")
    expect(tab.page.locator(".sv-note .sv-accepted-line").first).to_be_attached()
    tab.go(1)
    expect(tab.page.get_by_label("Event")).to_have_attribute("aria-valuetext", "Verdict")


def test_a_story_plays_to_its_end_and_stops(show):
    passes = next(len(note.data["blocks"]) for note in beginning("falcon").steps[0].notes if note.type == "blocks")
    tab = show(text("falcon"))
    tab.run(OPEN)
    tab.page.get_by_role("button", name="Play this step").click()
    expect(tab.page.locator(".sv-scrubber-label")).to_have_text("Pass 1")
    expect(tab.page.locator(".sv-tree .sv-current-band")).to_have_count(1)
    assert tab.run("document.querySelectorAll('.sv-tree .sv-dim').length") > 1, "later levels are not written yet"
    expect(tab.page.locator(".sv-scrubber-label")).to_have_text(f"Pass {passes}")
    expect(tab.page.get_by_role("button", name="Play this step")).to_be_visible()


def test_of_two_stories_one_is_chosen_and_stays_chosen(show):
    masses = [next(note.data for note in step.notes if note.type == "beam_mass") for step in beginning("ddd", 20).steps]
    stopped = next(at for at, mass in enumerate(masses) if mass["stopped"])
    tab = show(text("ddd", 20))
    tab.go(stopped)
    tab.run(OPEN)
    note = tab.page.locator(".sv-note")
    expect(note).to_contain_text("growing stops")
    expect(tab.page.locator(".sv-tree .sv-axis")).to_have_count(1)
    tab.page.get_by_role("button", name="Expand and rerank").click()
    expect(note).to_contain_text("candidates compete")
    expect(tab.page.locator(".sv-tree .sv-axis")).to_have_count(0)
    tab.go(stopped + 1)
    expect(note).to_contain_text("candidates compete")
    tab.page.get_by_role("tab", name="Verdict").click()
    expect(tab.page.locator(".specviz")).not_to_have_attribute("data-roomy", "")


def test_the_cursor_of_the_traversal_walks_the_tree(show):
    walks = [next(note.data for note in step.notes if note.type == "traversal") for step in beginning("traversal", 30).steps]
    rescuing = next(at for at, walk in enumerate(walks) if walk["rescued"] and not walk["top_down"])
    many = len(walks[rescuing]["rescued"])
    tab = show(text("traversal", 30))
    tab.go(rescuing)
    tab.run(OPEN)
    expect(tab.page.locator(".sv-note")).to_contain_text(f"going up from the leaves rescued {many} token")
    slider = tab.page.get_by_label("Event")
    slider.press("Home")
    expect(tab.page.locator(".sv-tree .sv-cursor")).to_have_count(1)
    expect(tab.page.locator(".sv-tree .sv-gauge")).to_have_count(1)
    slider.press("ArrowRight")
    expect(tab.page.locator(".sv-tree .sv-gauge")).to_have_count(2)
    tab.page.get_by_role("tab", name="Verdict").click()
    expect(tab.page.locator(".sv-tree .sv-gauge")).to_have_count(0)


def test_a_mark_in_the_picture_picks_its_node(show):
    tab = show(text("eagle2"))
    told(tab, "growth")
    tab.page.locator('.sv-note [data-id="2"]').click(force=True)
    assert tab.run("stage.stage.node") == 2


def test_the_decay_mask_follows_the_pointer_over_the_tree_and_back(show):
    tab = show(text("stree"))
    told(tab, "decay_mask")
    note = tab.page.locator(".sv-note")
    tab.page.locator('svg.sv-tree [data-id="12"]').hover()
    path = tab.run("(() => { const p = [12]; while (stage.stage.step.nodes[p[0]].parent >= 0)"
                   " p.unshift(stage.stage.step.nodes[p[0]].parent); return p; })()")  # fmt: skip
    expect(note).to_contain_text(f"The decays of {len(path)} nodes")
    rings = tab.page.locator(".sv-tree .sv-tree-overlay .sv-tap-ring, .sv-tree .sv-tree-overlay .sv-path-ring")
    expect(rings).to_have_count(len(path))
    tab.page.locator('.sv-decay-note [data-id="0"]').hover()
    expect(note).to_contain_text("reads the node itself and 3 inputs before the root")
    expect(rings).to_have_count(1)
    expect(note).to_contain_text("kept for the replay")


def test_heads_of_the_decay_mask_fade_more_or_less(show):
    tab = show(text("stree"))
    told(tab, "decay_mask")
    slider = tab.page.get_by_label("Event")
    shares = []
    for key in ("Home", "ArrowRight", "End"):
        slider.press(key)
        shares.append(tab.run("Number(document.querySelectorAll('.sv-carried')[12].getAttribute('fill-opacity'))"))
    assert shares[0] > shares[1] > shares[2]
