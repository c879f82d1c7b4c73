"""The stage in a real browser: it plays, scrubs, explains, and nothing a trace says does harm."""

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from specviz.trace import store
from tests.support.traces.samples import lines, sample_trace
from tests.support.viewer import cases

pytestmark = pytest.mark.browser

SAMPLE = store.text(sample_trace(14))


def test_play_again_starts_from_the_first_step(show):
    tab = show(speed=0.02)
    tab.go(13)
    tab.page.get_by_role("button", name="Play").click()
    expect(tab.page.get_by_role("button", name="Pause")).to_be_visible()
    assert tab.step() < 13


def test_a_reader_who_wants_less_motion_is_not_played_to(show):
    tab = show(autoplay=True, speed=1, context={"reduced_motion": "reduce"})
    tab.page.wait_for_timeout(300)
    assert tab.step() == 0


def test_scrubbing_moves_text_tree_and_inspector_together(show):
    tab = show()
    tab.page.get_by_label("Step", exact=True).fill("4")
    expect(tab.page.locator(".sv-tree-card .sv-card-title")).to_contain_text("Step 5 of 14")
    expect(tab.page.locator(".sv-step-tokens.sv-future")).to_have_count(9)
    expect(tab.page.locator(".sv-current-step")).to_have_attribute("data-step", "4")
    bonus = tab.run("stage.stage.step.bonus.text").strip()
    expect(tab.page.locator(".sv-tree .sv-is-bonus").last).to_contain_text(bonus)


def test_a_click_on_a_node_opens_the_proof_of_its_verdict(show):
    tab = show(cases.trace(cases.chain(0, length=5, kept=3), method="speculative_sampling"))
    tab.page.locator('.sv-tree [data-id="4"]').click()
    inspector = tab.page.locator(".sv-inspector")
    expect(inspector).to_contain_text("Rejected · depth 4")
    expect(inspector).to_contain_text("The draw 0.63 is not below 0.20, so it is dropped")
    expect(inspector).to_contain_text("draw < min(1, p/q)")
    tab.page.locator('.sv-tree [data-id="bonus"]').click()
    expect(inspector).to_contain_text("Bonus · depth 4")
    expect(tab.page.locator('[data-id="bonus"][aria-selected="true"]')).to_have_count(1)


def test_hovering_shows_the_numbers_without_a_click(show):
    tab = show(cases.trace(cases.chain(0, length=5, kept=3), cases.bushy(1)))
    tip = tab.page.locator(".sv-tooltip")
    tab.page.locator('.sv-tree [data-id="4"]').hover()
    expect(tip).to_contain_text("rejected, depth 4")
    expect(tip).to_contain_text("p 0.10 · q 0.50 · threshold 0.20 · draw 0.63")
    tab.page.locator(".sv-token").first.hover()
    expect(tip).to_contain_text("step 1")
    box = tab.page.locator(".sv-clock-layer").bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] - 32)
    expect(tip).to_contain_text("verify 42.0 ms")
    tab.page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_a_click_on_a_word_or_on_the_overview_goes_there(show):
    tab = show()
    tab.page.locator('.sv-step-tokens[data-step="7"] .sv-token').first.click()
    assert tab.step() == 7
    box = tab.page.locator(".sv-clock-layer").bounding_box()
    tab.page.mouse.click(box["x"] + 84, box["y"] + 40)
    assert tab.step() == 0


def test_whatever_a_token_says_stays_text(show):
    tab = show(cases.trace(cases.hostile(), title=cases.PATCHES[0], prompt=cases.PATCHES[1], warnings=[cases.PATCHES[2]]))
    for tabs in ("verdict", "method"):
        tab.run("(tab) => { stage.stage.set({ tab }); stage.flush(); }", tabs)
        for node in ("0", "1", "2", "3", "4", "bonus"):
            tab.run("(id) => { stage.pick(id === 'bonus' ? id : Number(id)); stage.flush(); }", node)
    tab.run("stage.stage.set({ table: true }); stage.flush()")
    tab.page.wait_for_timeout(100)
    assert tab.run("window.pwned") is None
    assert (
        tab.run("document.querySelectorAll('.specviz img, .specviz script, .specviz [onload], .specviz [onerror]').length") == 0
    )
    expect(tab.page.locator(".sv-strip")).to_contain_text(cases.PATCHES[0])
    expect(tab.page.locator(".sv-banner")).to_have_text(cases.PATCHES[2])
    expect(tab.page.locator(".sv-table-box")).to_contain_text("\\u202egnp.exe")


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("error", "The run failed. The drafter broke."),
        ("out_of_memory", "ran out of memory"),
        ("cancelled", "The run was stopped."),
        ("time_limit", "The run reached its time limit."),
    ],
)
def test_a_run_that_broke_off_says_so_loudly(show, reason, told):
    text = cases.text([cases.run(), cases.chain(0), cases.end(2, reason, "The drafter broke.")])
    tab = show(text)
    expect(tab.page.locator(".sv-banner")).to_contain_text(told)
    expect(tab.page.locator(".sv-banner")).to_contain_text("The 1 step up to there are kept" if reason else "")


def test_before_the_first_run_the_stage_says_what_to_do(show):
    tab = show("")
    expect(tab.page.locator(".sv-empty")).to_contain_text("No run yet")
    expect(tab.page.get_by_role("button", name="Play")).to_be_disabled()
    tab.follow([], follow=False, message="Loading the model", fraction=0.5)
    expect(tab.page.locator(".sv-empty")).to_contain_text("Loading the model")
    expect(tab.page.locator(".sv-empty progress")).to_have_attribute("value", "0.5")
    expect(tab.page.locator(".sv-spinner")).to_be_visible()


def test_two_stages_share_a_page_without_sharing_a_state(show):
    tab = show()
    ids = tab.run("""(text) => {
      const host = document.body.appendChild(document.createElement("div"));
      window.second = SpecvizViewer.mount(host, { text, autoplay: false });
      second.go(3);
      second.flush();
      return [...document.querySelectorAll("[id]")].map((one) => one.id);
    }""", SAMPLE)  # fmt: skip
    assert len(ids) == len(set(ids))
    assert tab.step() == 0
    assert tab.run("second.stage.cursor") == 3


def test_zooming_goes_on_around_the_chosen_node_and_shades_the_edges_that_hide_something(show):
    tab = show(cases.trace(cases.bushy(0)))
    frame = "document.querySelector('.sv-scroll')"
    tab.run("stage.flush()")  # the frame's size may still be told
    assert tab.run(f"[{frame}.scrollWidth - {frame}.clientWidth, {frame}.scrollHeight - {frame}.clientHeight]") == [0, 0]
    node = tab.page.locator(".sv-tree .sv-is-accepted[data-id]").last
    node.click()
    tab.run("stage.flush()")
    before = node.bounding_box()
    for _ in range(3):
        tab.page.get_by_role("button", name="Zoom in").click()
        tab.run("stage.flush()")
        after = node.bounding_box()
        assert (
            abs(after["x"] + after["width"] / 2 - before["x"] - before["width"] / 2) < 8
        )  # its box is wider where there is more room
        assert abs(after["y"] + after["height"] / 2 - before["y"] - before["height"] / 2) < 8
    assert tab.run(f"{frame}.scrollWidth > {frame}.clientWidth && {frame}.scrollHeight > {frame}.clientHeight")
    attachments = tab.run(f"getComputedStyle({frame}).backgroundAttachment")
    assert attachments.count("local") == 4 and attachments.count("scroll") == 4
    tab.page.get_by_role("button", name="Fit").click()
    tab.run("stage.flush()")
    assert tab.run(f"[{frame}.scrollWidth - {frame}.clientWidth, {frame}.scrollHeight - {frame}.clientHeight]") == [0, 0]


def test_the_lanes_of_a_long_run_show_a_part_of_it_and_a_map_shows_the_whole(show):
    short = show()
    lanes = "stage.stage.panels.find((panel) => panel.drawVeil)"
    assert short.run(f"[{lanes}.zoom.on, {lanes}.at.from, {lanes}.at.to >= {lanes}.stage.total]") == [False, 0, True]
    expect(short.page.get_by_role("button", name="Whole run")).to_be_hidden()
    tab = show(store.text(sample_trace(420)))
    seen = f"(() => {{ const {{ at }} = {lanes}; return [{lanes}.stepAt(at.from), {lanes}.stepAt(at.to)]; }})()"
    for step in (0, 1, 150, 419, 7):
        tab.go(step)
        first, last = tab.run(seen)
        assert first <= step <= last and last - first < 200
        assert tab.run(f"{lanes}.drawn") <= last + 1, "more was drawn than is seen"
    box = tab.page.locator(".sv-clock-layer").bounding_box()
    left, plot, map_top = tab.run(f"[{lanes}.at.left, {lanes}.at.plot, {lanes}.at.map]")
    length = tab.run(f"{lanes}.at.plot * stage.stage.total / {lanes}.zoom.whole")
    tab.page.mouse.click(box["x"] + left + 0.8 * length, box["y"] + map_top + 5)
    tab.run("stage.flush()")
    first, last = tab.run(seen)
    assert first < 0.75 * 420 < 0.85 * 420 < last and tab.step() == 7, "the map moves the window, not the run"
    tab.page.mouse.click(box["x"] + left + 0.5 * plot, box["y"] + 20)
    assert first < tab.step() < last
    chosen = tab.step()
    tab.page.get_by_role("button", name="Show less of the run").click()
    tab.run("stage.flush()")
    closer = tab.run(seen)
    assert closer[1] - closer[0] < last - first and closer[0] <= chosen <= closer[1]
    tab.page.get_by_role("button", name="Whole run").click()
    tab.run("stage.flush()")
    assert tab.run(seen) == [0, 419]


def test_the_lanes_follow_a_long_run_that_is_going_on(show):
    tab = show("")
    known = lines(sample_trace(420))
    tab.follow(known[:200])
    for start, stop in ((200, 330), (330, 421)):
        tab.run("(text) => { give(text); stage.flush(); }", "\n".join(known[start:stop]))
        lanes = "stage.stage.panels.find((panel) => panel.drawVeil)"
        assert tab.run(f"{lanes}.stage.total <= {lanes}.at.to && {lanes}.drawn === {lanes}.stage.trace.steps.length")


def test_a_step_of_a_line_end_alone_can_be_seen_and_a_distribution_s_rule_says_so(show):
    nodes = [cases.node(-1, " a", "root"), cases.node(0, "\n", "accepted", 0.6, 0.7, 0.9, 0.2)]
    tab = show(cases.trace(cases.step(0, nodes, [1], [1, 9, " b", 0.5, "target"], rule="ratio")))
    expect(tab.page.locator(".sv-strip .sv-line-end")).to_have_count(1)
    assert "⏎" in tab.run("getComputedStyle(document.querySelector('.sv-line-end'), '::before').content")
    assert tab.run("document.querySelector('.sv-strip').textContent") == "\n b"
    expect(tab.page.locator(".sv-badge.sv-exact")).to_have_text("exact in distribution")
    greedy = show(cases.trace(cases.bushy(0)))
    expect(greedy.page.locator(".sv-badge.sv-exact")).to_have_text("exact")
