"""The stage for every hand and eye: keyboard, screen reader, phone, narrow column; nothing too small."""

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from specviz.trace import store
from tests.support.pages.stage import PHONE
from tests.support.traces.samples import sample_trace
from tests.support.viewer import cases

pytestmark = pytest.mark.browser


def test_the_keyboard_works_inside_the_stage_and_only_there(show):
    tab = show()
    tab.page.keyboard.press("ArrowRight")
    assert tab.step() == 0
    tab.page.locator(".specviz").focus()
    for key, expected in (
        ("ArrowRight", 1),
        ("PageDown", 2),
        ("ArrowLeft", 1),
        ("End", 13),
        ("PageUp", 12),
        ("Home", 0),
    ):
        tab.page.keyboard.press(key)
        assert tab.step() == expected, key
    tab.page.keyboard.press("r")
    assert tab.run("stage.stage.step.overruled") is True
    tab.page.keyboard.press(" ")
    assert tab.run("stage.stage.player.playing") is True
    tab.page.keyboard.press(" ")
    assert tab.run("stage.stage.player.playing") is False
    tab.page.keyboard.press("t")
    expect(tab.page.locator(".sv-table-box table")).to_be_visible()


def test_the_method_s_paper_is_a_link_in_the_header_that_asks_nothing_by_itself(show):
    def written(method):
        trace = sample_trace(4)
        return store.text(trace.replace(run=trace.run.replace(method=method)))

    tab = show(written("eagle3"))
    link = tab.page.locator(".sv-head a")
    expect(link).to_have_accessible_name("arXiv 2503.01840")
    assert link.get_attribute("href") == "https://arxiv.org/abs/2503.01840" and "noopener" in str(link.get_attribute("rel"))
    expect(show(written("nobody_s")).page.locator(".sv-head a")).to_have_count(0)


def test_space_on_a_focused_button_presses_that_button(show):
    tab = show()
    tab.page.get_by_role("button", name="Step", exact=True).focus()
    tab.page.keyboard.press(" ")
    assert tab.step() == 1
    assert tab.run("stage.stage.player.playing") is False


def test_arrows_walk_the_tree_once_a_node_has_the_focus(show):
    tab = show(cases.trace(cases.bushy(0)))
    tab.page.locator('.sv-tree [data-id="0"]').focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "Home", "End"):
        tab.page.keyboard.press(key)
        seen.append(tab.run("document.activeElement.dataset.id"))
    path = tab.run("stage.stage.step.path")
    assert seen[:2] == [str(path[0]), str(path[1])]
    assert tab.run("(id) => stage.stage.step.nodes[Number(id)].depth", seen[2]) == 2
    assert seen[3] == tab.run("(id) => String(stage.stage.step.nodes[Number(id)].parent)", seen[2])
    assert seen[4:] == ["0", "bonus"]
    assert tab.step() == 0
    expect(tab.page.locator('.sv-tree [tabindex="0"]')).to_have_count(1)
    expect(tab.page.locator(".sv-verdict")).to_contain_text("Bonus")


def test_the_tree_and_its_table_say_the_same(show):
    tab = show(cases.trace(cases.chain(0, length=5, kept=3)))
    tab.page.get_by_role("button", name="Table").click()
    rows = tab.page.locator(".sv-table-box tbody tr")
    expect(rows).to_have_count(7)
    expect(rows.nth(4)).to_contain_text("rejected")
    expect(rows.nth(4)).to_contain_text("0.63")
    rows.nth(4).click()
    expect(tab.page.locator(".sv-verdict")).to_contain_text("Rejected")
    tab.page.get_by_role("button", name="Table").click()
    expect(tab.page.locator('.sv-tree [data-id="4"]')).to_have_attribute("aria-selected", "true")


def test_screen_readers_hear_each_step(show):
    tab = show(cases.trace(cases.bushy(0), cases.bushy(1), cases.chain(0)))
    tab.page.get_by_role("button", name="Step", exact=True).click()
    expect(tab.page.locator(".sv-live-region").first).to_have_text("Step 2: 3 of 80 accepted, bonus ·physics")
    node = tab.page.get_by_role("treeitem", selected=True)
    assert "accepted, depth 3" in str(node.get_attribute("aria-label"))
    assert node.get_attribute("aria-level") == "4"


def test_on_a_phone_nothing_is_cut_off_and_fingers_hit(show):
    tab = show(size=PHONE, context={"has_touch": True, "is_mobile": True})
    tab.go(5)
    assert tab.run("document.documentElement.scrollWidth") <= 390
    controls = "[...document.querySelectorAll('.specviz button, .specviz select')].filter((one) => one.offsetParent)"
    boxes = tab.run(controls + ".map((one) => [one.textContent, one.offsetWidth, one.offsetHeight])")
    assert len(boxes) > 8
    for name, width, height in boxes:
        assert width >= 44 and height >= 44, name
    tab.page.locator(".sv-tree .sv-is-bonus").last.tap()
    expect(tab.page.locator(".sv-verdict")).to_contain_text("Bonus")


def test_beside_another_stage_the_proof_comes_on_demand_and_goes_again(show):
    tab = show(size={"width": 514, "height": 676})
    inspector = tab.page.locator(".sv-inspector")
    expect(inspector).to_be_hidden()
    expect(tab.page.locator(".sv-run")).to_be_visible()
    tab.page.locator('.sv-tree [data-id="1"]').click()
    expect(inspector).to_be_visible()
    assert tab.run("document.querySelector('.specviz').scrollHeight") <= 676
    tab.page.locator('.sv-tree [data-id="1"]').click()
    expect(inspector).to_be_hidden()
    tab.page.locator('.sv-tree [data-id="1"]').click()
    tab.page.keyboard.press("PageDown")
    expect(inspector).to_be_hidden()


def test_every_node_of_a_crowded_tree_is_reached_with_the_keyboard(show):
    tab = show(cases.trace(cases.bushy(0)), size={"width": 1280, "height": 620})
    many = tab.run("stage.stage.step.nodes.length")
    assert many > 60
    for key in ("0", "+", "+"):
        tab.page.locator(".specviz").focus()
        tab.page.keyboard.press(key)
        reached = set()
        for _ in range(many):
            tab.run("stage.flush()")
            reached |= set(
                tab.run("[...document.querySelectorAll('.sv-tree .sv-node:not(.sv-is-chip)')].map((one) => one.dataset.id)")
            )
            left = [at for at in range(many) if str(at) not in reached]
            if not left:
                break
            names = tab.run(
                """(node) => { const { nodes } = stage.stage.step, up = [];
                for (let at = nodes[node].parent; at >= 0; at = nodes[at].parent) up.push(`chip${at}`); return up; }""",
                left[0],
            )
            closed = next(name for name in names if tab.page.locator(f'.sv-tree [data-id="{name}"]').count())
            chip = tab.page.locator(f'.sv-tree [data-id="{closed}"]')
            chip.focus()
            tab.page.keyboard.press("Enter")
            tab.run("stage.flush()")
            assert tab.run(
                "document.activeElement.closest('.sv-tree') !== null && /^[0-9]+$/.test(document.activeElement.dataset.id)"
            )
        else:
            raise AssertionError(f"never seen: {left}")
        sizes = tab.run("[...document.querySelectorAll('.sv-tree text')].map((one) => Number(one.getAttribute('font-size')))")
        assert min(sizes) >= 11
