"""The panels of the notes, under a page without a browser: what they make of numbers, and that nothing breaks them."""

import copy
import json
from pathlib import Path

import pytest
from msgspec import to_builtins

from specviz.viewer import bundle
from tests.support.traces.length_curves import MADE_UP
from tests.support.traces.recordings import noted
from tests.support.viewer.panes import JUNK, PAGE, drawn, step

WRITTEN = json.loads((Path(__file__).parent / "notes.json").read_text(encoding="utf-8"))
NOTES = WRITTEN["notes"]
"""A note of each kind; ``said`` lists what a panel says of one, at a moment and after a change."""

MOMENT = """
const on = { ...stageOf(step), moments: given.moment ? { [given.kind]: given.moment } : {}, cursor: 0 };
on.trace = { steps: [step] };
noteRegistry.draw(pane, on);
return [said(pane), all(pane).map((one) => one.attributes.class || "")];
"""


@pytest.mark.spread(10)
@pytest.mark.parametrize(("kind", "moment", "change", "words"), WRITTEN["said"])
def test_a_panel_says_what_its_numbers_mean(node, kind, moment, change, words):
    given = {"step": step(kind, NOTES[kind] | change), "kind": kind, "moment": moment}
    text, _ = node(PAGE + MOMENT, given)
    assert [word for word in words if word not in text] == []
    assert "end-of-text token" not in text or change.get("ended"), "the fence is no end"
    assert "at most" not in text or isinstance(change.get("depth", {}).get("levels", 1), int)


@pytest.mark.parametrize("kind", ["denoised", "lattice", "frontier"])
def test_a_veiled_step_keeps_its_verdict_back(node, kind):
    covered = step(kind, NOTES[kind]) | {"emitted": [], "pieces": [], "path": [], "bonus": None}
    for one in covered["nodes"][1:]:
        one[5] = "skipped"
    text, classes = node(PAGE + MOMENT, {"step": covered, "kind": kind, "moment": ""})
    assert "kept" not in text and not any("sv-is-accepted" in one or "sv-is-rejected" in one for one in classes)


def test_curves_by_length_are_drawn_where_the_target_was_measured(node, monkeypatch):
    body = """
    const drawn = (target) => {
      noteRegistry.draw(pane, { ...stageOf(step), trace: { steps: [step], run: { target } }, cursor: 0 });
      return said(pane);
    };
    const before = drawn("tiny");
    modules.generated.MEASURED.splice(0, Infinity, given.curves);
    return [before, drawn("tiny"), drawn("another")];
    """
    before, text, other = node(PAGE + body, {"step": step("last_state", NOTES["last_state"]), "curves": to_builtins(MADE_UP)})
    assert "Measured" not in before + other, "nothing is drawn that nobody measured"
    assert "Measured 2026-01-02: two questions and a <copy>." in text and "4096" in text
    for curves, expected in (([MADE_UP], "a \\u003ccopy>"), ([], "const MEASURED = [];")):
        monkeypatch.setattr(bundle, "measured", lambda found=curves: found)
        assert expected in bundle.script.__wrapped__()


RECORDED = noted()


@pytest.mark.parametrize("kind", sorted({*RECORDED, *NOTES}))
def test_damaged_notes_never_break_the_pane(node, kind):
    """Every field of the recorded note, or of the one above, in place of which there is junk."""
    whole = NOTES[kind] if kind in NOTES else next(one for one in RECORDED[kind][1]["notes"] if one["type"] == kind)
    steps = [step(kind, copy.deepcopy(whole) | {field: junk, "type": kind}) for field in whole for junk in JUNK]
    body = """
    return given.steps.map((one) => {
      const stage = stageOf(parseStep(one));
      stage.trace = { steps: [stage.step], run: given.run };
      stage.cursor = 0;
      noteRegistry.draw(pane, stage);
      const overlay = noteRegistry.overlay(stage);
      if (overlay && overlay.under) overlay.under({ items: new Map() });
      return all(pane).every((el) => !/NaN|undefined|Infinity/.test(JSON.stringify(el.attributes)));
    });
    """
    run = RECORDED[kind][0] if kind in RECORDED else {}
    assert all(node(PAGE + body, {"step": steps[0], "steps": json.loads(json.dumps(steps)), "run": run}))


def test_tokens_kept_by_a_relaxed_rule_stand_in_the_key(node):
    heads = {"heads": [{"head": 1, "tokens": [2, 3], "texts": [" sky", " sea"], "probability": [0.6, 0.2]}]}
    relaxed = step("heads", heads)
    relaxed["nodes"][1][5] = "relaxed"
    text, classes = node(PAGE + "return [said(pane), classes];", {"step": relaxed})
    assert "relaxed: the strict rule would have rejected it" in text and "sv-cell sv-is-relaxed" in classes
    assert "relaxed" not in drawn(node, "heads", heads)[0]


COUNTERS = "served_counters"
OVER_TIME = """
stage.trace = { steps: given.steps.map(parseStep) };
stage.step = stage.trace.steps[given.at];
noteRegistry.draw(pane, stage);
return [said(pane), all(pane).filter((one) => one.tag === "path").map((one) => one.attributes)];
"""


def over_time(node, at, *samples):
    steps = [step(COUNTERS, {"samples": one}) | {"index": place, "seq": place + 1} for place, one in enumerate(samples)]
    return node(PAGE.replace("noteRegistry.draw(pane, stage);", "") + OVER_TIME, {"step": steps[0], "steps": steps, "at": at})


def sample(ms, drafts, *accepted):
    return {"ms": ms, "drafts": drafts, "accepted": list(accepted)}


def test_each_place_has_a_line_of_what_was_kept_so_far(node):
    said, paths = over_time(node, 2, [sample(250, 4, 4, 2)], [], [sample(500, 8, 6, 2), sample(750, 10, 8, 3)])
    assert "Of 10 drafts so far the server kept, by position in the draft: 80 %, 30 %." in said and "sampled 3 times" in said
    curves = [path for path in paths if "sv-curve" in path["class"]]
    assert [path["class"] for path in curves] == ["sv-curve sv-curve-0", "sv-curve sv-curve-1"]
    assert all(path["d"].count("L") == 2 for path in curves)


def test_damaged_samples_never_break_the_pane(node):
    for junk in JUNK:
        for damaged in (
            junk,
            [junk],
            [sample(0, 4, 1)],
            [{"ms": junk, "drafts": 3, "accepted": [1]}],
            [sample(1, 4) | {"accepted": junk}],
        ):
            said, paths = over_time(node, 0, damaged)
            assert said and not any("NaN" in str(path) or "undefined" in str(path) for path in paths)
