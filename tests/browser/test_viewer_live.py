"""A run that is going on: every step arrives, nothing is mounted anew, and looking back is allowed."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import expect

from tests.support.pages import stage as stage_page
from tests.support.pages.stage import PHONE, StagePage
from tests.support.traces.samples import lines, sample_trace
from tests.support.viewer import cases

pytestmark = pytest.mark.browser


LINES = lines(sample_trace(60, method="stand"))
FIRST = [json.dumps(cases.run()), json.dumps(cases.chain(0))]


@pytest.fixture
def tab(browser, tmp_path):
    opened = StagePage(browser).open(tmp_path, "")
    yield opened
    opened.close()


def grow(tab, start, stop):
    """Hand lines over one by one, each in a frame of its own."""
    tab.follow(LINES[:start])
    tab.run(
        """async (lines) => {
          for (const line of lines) {
            give(line);
            await new Promise((drawn) => requestAnimationFrame(drawn));
          }
          stage.flush();
        }""",
        LINES[start:stop],
    )


def test_sixty_updates_arrive_and_nothing_is_mounted_anew(tab):
    grow(tab, 0, 3)
    tab.run("window.before = { root: document.querySelector('.specviz'), svg: document.querySelector('.sv-tree'), "
            "word: document.querySelector('.sv-token') }")  # fmt: skip
    grow(tab, 3, len(LINES))
    assert tab.steps() == 60
    assert tab.step() == 59
    same = "before.root === document.querySelector('.specviz') && before.svg === document.querySelector('.sv-tree') "
    assert tab.run(same + "&& before.word === document.querySelector('.sv-token')") is True
    said = tab.run("document.querySelector('.sv-strip').textContent")
    assert said == json.loads(LINES[-1])["text"]
    assert tab.run("stage.stage.trace.problems") == []


def test_while_the_prompt_is_read_the_stage_waits_visibly(tab):
    grow(tab, 0, 1)
    expect(tab.page.locator(".sv-empty")).to_contain_text("reading the prompt")
    expect(tab.page.locator(".sv-spinner")).to_be_visible()
    expect(tab.page.locator(".sv-badge.sv-live")).to_have_text("live")
    grow(tab, 1, 2)
    expect(tab.page.locator(".sv-spinner")).to_be_hidden()


def test_looking_back_stops_following_until_asked(tab):
    grow(tab, 0, 20)
    assert tab.step() == 18
    tab.page.locator(".specviz").focus()
    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowLeft")
    grow(tab, 20, 30)
    assert tab.step() == 16
    tab.page.get_by_role("button", name="Follow live").click()
    assert tab.step() == 28
    grow(tab, 30, 40)
    assert tab.step() == 38


def test_playing_catches_up_with_a_live_run_and_follows_it(tab):
    grow(tab, 0, 20)
    tab.go(15)
    tab.run("stage.stage.player.speed = 10")
    tab.page.get_by_role("button", name="Play").click()
    tab.until("stage.stage.follow && stage.stage.cursor === 18")
    grow(tab, 20, 25)
    assert tab.step() == 23


PLAIN = "stage.stage.panels.find((one) => one.constructor.name === 'Overview').plain"


def test_the_baseline_arrives_last_and_shows_what_was_saved(tab):
    first = json.loads(LINES[-1])
    plain = {**first, "baseline": None}
    tab.follow([*LINES[:-1], json.dumps(plain)])
    assert tab.run(PLAIN) is None
    tab.run("(line) => { give(line); stage.flush(); }", json.dumps({**first, "seq": first["seq"] + 1}))
    assert tab.run(PLAIN + ".times.length") == len(first["baseline"]["token_ns"])
    expect(tab.page.locator(".sv-run .sv-card-title")).to_contain_text("baseline")


def test_an_error_after_some_steps_keeps_them_on_the_stage(tab):
    tab.follow(FIRST)
    tab.follow([], error="The engine broke.")
    expect(tab.page.locator(".sv-banner.sv-error")).to_have_text("The engine broke.")
    assert tab.steps() == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [stage_page.PROJECTOR, PHONE])
def test_axe_finds_nothing_serious(browser, tmp_path, theme, size):
    script = os.environ.get("AXE_JS", "")
    if not Path(script).is_file():
        pytest.skip("no axe-core here: set AXE_JS to the path of axe.min.js (npm install axe-core@4.14)")
    tab = StagePage(browser, size).open(tmp_path, "".join(line + "\n" for line in LINES), query=f"?theme={theme}")
    tab.run(Path(script).read_text(encoding="utf-8"))
    for step, state in ((20, {"tab": "verdict"}), (59, {"tab": "method"}), (40, {"table": True})):
        tab.run("([step, state]) => { stage.stage.set(state); stage.go(step); stage.flush(); }", [step, state])
        found = tab.run("axe.run(document.querySelector('.specviz')).then((all) => all.violations)")
        serious = [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in found
                   if one["impact"] in ("serious", "critical")]  # fmt: skip
        assert serious == []
    tab.close()
