"""The replay page holds the run, stays below 1 MB, says what it leaves out, and runs no stranger's script."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from specviz.errors import BadInput
from specviz.trace import export, replay, store
from specviz.trace.schema import Node, Note, Trace
from tests.support.traces.samples import sample_trace

SHOUT = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'><!--\u2028\u2029{{script}}"
VIEWER = """
const element = document.getElementById("specviz-trace");
const found = element.textContent.split("\\n").map((line) => JSON.parse(line));
const shown = document.createElement("p");
shown.id = "shown";
shown.textContent = found.length + " " + found[1].nodes[1][2];
document.getElementById("specviz").append(shown);
"""


def hostile() -> Trace:
    """A run whose every text would like to be markup."""
    trace = sample_trace(3)
    first = trace.steps[0]
    nodes = (first.nodes[0], replace(first.nodes[1], text=SHOUT), *first.nodes[2:])
    step = replace(first, nodes=nodes, notes=(Note("shout", {"x": SHOUT}),))
    return replace(trace, run=replace(trace.run, title=SHOUT, prompt=SHOUT), steps=(step, *trace.steps[1:]))


def embedded(page: str) -> str:
    """The lines in a page's data block."""
    found = re.search('<script type="application/json" id="specviz-trace">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_whole_trace_can_be_taken_out_of_the_page_again() -> None:
    trace = sample_trace(40, method="stand")
    page = export.html(trace, VIEWER, "p { color: red }")
    assert store.read(embedded(page)) == trace
    assert "specviz-notice" not in page and VIEWER in page and "p { color: red }" in page


def test_no_text_of_a_trace_becomes_markup() -> None:
    page = export.html(hostile(), VIEWER, "")
    assert page.count("<script") == 2 and "<img" not in page and "<!--" not in page
    assert "\u2028" not in embedded(page) and "<" not in embedded(page)
    assert store.read(embedded(page)) == hostile()
    assert html.escape(SHOUT.split("\u2028")[0]) in page


@pytest.mark.slow
def test_what_does_not_fit_is_left_out_notes_first_then_rows_and_the_page_says_so() -> None:
    short, middle, long = sample_trace(60), sample_trace(450), sample_trace(800)
    assert "leaves out" not in replay.page(short, VIEWER, "")
    for trace, script, rows in ((middle, VIEWER, True), (long, VIEWER, False)):
        page = replay.page(trace, script, "")
        kept = store.read(embedded(page))
        assert len(page.encode()) < 1_000_000
        assert 'class="specviz-notice" role="note">To keep this page below 1 MB it leaves out the method' in page
        assert ("tables of likely tokens" in page) == (not rows)
        assert kept.end == trace.end and len(kept.steps) == len(trace.steps)
        assert not any(step.notes for step in kept.steps) and any(step.rows for step in kept.steps) == rows


@pytest.mark.slow
def test_a_run_too_long_for_any_page_keeps_its_first_steps_and_says_how_many() -> None:
    trace = sample_trace(1500)
    page = replay.page(trace, VIEWER, "")
    kept = store.read(embedded(page))
    assert 990_000 < len(page.encode()) < 1_000_000
    assert 300 < len(kept.steps) < 1500 and kept.end is None
    assert f"leaves out the steps after the first {len(kept.steps)} of 1500" in page


def test_a_prompt_too_long_for_any_page_is_refused() -> None:
    trace = sample_trace(2)
    run = replace(trace.run, prompt="x" * 990_000)
    with pytest.raises(BadInput, match="too large for a replay page"):
        replay.page(replace(trace, run=run), VIEWER + " " * 10_000, "")


def test_a_template_must_have_every_mark_once() -> None:
    for template in ("", replay.TEMPLATE.replace("{{policy}}", ""), replay.TEMPLATE + "{{trace}}"):
        with pytest.raises(ValueError, match="marks once"):
            replay.page(sample_trace(1), "", "", template or "<p>")


@pytest.mark.browser
def test_the_page_runs_from_disk_in_a_browser_and_asks_for_nothing(tmp_path: Path, chromium: str) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "replay.html"
    script = VIEWER + 'window.inside = "</script>";\r\n'
    path.write_text(export.html(hostile(), script, "#shown { color: rgb(1, 2, 3) }"), encoding="utf-8")
    asked: list[str] = []
    wrong: list[str] = []
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda told: wrong.append(told.text))
        page.on("pageerror", lambda fault: wrong.append(str(fault)))
        page.goto(path.as_uri())
        assert page.locator("#shown").text_content() == "5 " + SHOUT
        assert page.evaluate("window.hurt") is None
        assert page.evaluate("window.inside") == "</script>"
        browser.close()
    assert asked == [path.as_uri()] and wrong == []


def test_nodes_without_numbers_fit_in_a_page() -> None:
    trace = sample_trace(1)
    step = replace(trace.steps[0], nodes=(Node(-1, 1, "", status="root"),), path=(), verified=0)
    bonus = replace(step.bonus, parent=0)
    step = replace(step, bonus=bonus, emitted=(bonus.token,), pieces=("x",), rows=(), notes=())
    bare = replace(trace, steps=(step,), end=None)
    assert store.read(embedded(replay.page(bare, "", ""))) == bare
