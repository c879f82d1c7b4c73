"""The panels of the notes, under a page without a browser: what they make of numbers, and that nothing breaks them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from msgspec import to_builtins

from specviz.viewer import bundle
from tests.support.traces.length_curves import MADE_UP
from tests.support.traces.recordings import noted
from tests.support.viewer.node import Evaluate
from tests.support.viewer.panes import JUNK, PAGE, drawn, step

SO_FAR = {"rounds": 3, "kept": 8, "buffered": 18, "passes": 9, "calls": 18, "drafting": 39.0, "verifying": 144.0}
FORECAST = {
    "target": 40.0, "target_block": 46.0, "middle": 15.0, "drafter": 2.8, "without": 1.9, "with": 5.5, "below": 1.8,
    "ratio": 0.375, "bound": 0.62, "margin": 0.245, "before": 24.0, "gain": 1.21,
}  # fmt: skip
PASS = {"drafted": 3, "kept": 1, "calls": 2, "tokens": [2, 4], "texts": [" sky", " is"], "drafting": 4.0, "verifying": 16.0}
PLACES = [
    {"tokens": [2, 3], "texts": [" sky", " sea"], "probability": [0.6, 0.3], "size": 2},
    {"tokens": [4, 5, 9], "texts": [" is", " was", " sun"], "probability": [0.4, 0.3, 0.1], "size": 9},
]
NOTES: dict[str, dict[str, Any]] = {
    "cascade": {"middle": "int4", "gathered": 5, "length": 6, "passes": [PASS], "so_far": SO_FAR, "forecast": FORECAST},
    "layer_groups": {
        "layers": 6, "groups": [[0], [1, 2, 3, 4], [5]], "stages": 3, "calibrated": True, "cached": 20, "drafted": 3,
        "devices": [], "exact": 3, "repaired": 2, "fuzzy": 0, "likeness": [[1.0, 1.0]] * 6,
    },
    "drafter_selection": {
        "names": ["code", "maths", "copy"], "chances": [0.7, 0.25, 0.05], "drafted": 0, "informed": True,
        "loss": "length", "ahead": 4, "tokens": [2, 4, 8], "texts": [" sky", " is", " blue"],
        "ghosts": [[0.9, 0.8, 0.1], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]], "expected": [1.5, 2.75, 1.0], "settled": 2,
        "waiting": [{"place": 14, "known": 2}, {"place": 15, "known": 1}], "after": [0.8, 0.2, 0.0],
    },
    "last_state": {"half": "tree", "length": 13, "score": 0.75, "threshold": 1.5, "probed": True},
    "suffix": {
        "source": "context", "suffix_start": 6, "suffix_length": 2, "occurrences": 3, "limit": 4, "score": 2.5,
        "threshold": 1.0, "used": True, "scores": {"context": 2.5, "outputs": 0.75}, "remembered": 120,
        "tried": [{"length": 2, "limit": 4, "score": 2.5}],
        "rows": [{"node": 0, "count": 3, "tokens": [2, 3], "texts": [" sky", " sea"], "counts": [2, 1], "others": 0}],
    },
    "merged_tree": {
        "sources": ["root", "drafter", "context", "drafter+outputs", "drafter", "outputs", "context"],
        "value": [1.0, 0.8, 0.15, 0.5, 0.2, 0.1, 0.02], "kept": 6, "considered": 9, "expected": 2.75, "fitted": True,
        "grafts": [{"node": 0, "source": "context", "matched": 2, "count": 2}],
    },
    "batch_cache": {
        "row": 1, "round": 3, "every": 4, "swept": True,
        "rows": [{"row": 0, "runs": [12, 3, 4], "holes": 3}, {"row": 1, "runs": [9], "holes": 0}],
    },
    "denoised": {"places": PLACES},
    "lattice": {
        "columns": PLACES, "fence": 2, "ended": False, "weight": 0.5,
        "beams": [
            {"parents": [0, 0], "picks": [0, 1], "score": [-1.0, -1.5]},
            {"parents": [1, 0], "picks": [1, 0], "score": [-2.0, -2.5]},
        ],
        "gauge": {"length": 2, "shortest": 2, "longest": 8, "drafted": 3.5, "accepted": 1.25, "adaptive": True},
    },
    "beam_mass": {"mass": [-0.1, -0.9], "tested": [1, 2], "threshold": -0.5, "stopped": 2, "limit": 4},
    "step_embeddings": {"norms": [0.0, 1.5], "reached": [4, 3], "kept": [3, 1]},
    "frontier": {
        "value": [0, -0.2, -0.7, -1.4, -1.9, -2.6, -4.2], "kept": 6, "considered": 9, "reach": [1.0, 0.5],
        "places": [{"tokens": [2, 3], "texts": [" sky", " sea"], "probability": [0.8, 0.1]}],
    },
    "growth": {
        "beams": [[0], [1, 2], [3, 4]], "value": [0, -0.2, -1.9, -0.7, -1.4, -2.6, -4.2], "kept": 6, "considered": 9,
    },
}  # fmt: skip
CORRECTED = {"given": [[0.25, 0.7], [0.4, 0.3, 0.1]], "rates": [0.9, 0.3], "considered": 2}
DEEP = {"levels": 2, "nodes": 8, "tau": 1.8, "gain": 1.152, "forward": 0.1}
SAID: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = [
    ("cascade", "pass 0", {}, ("the intermediate model took 1 and added its own token. Buffer: 2 of μ = 5.",)),
    (
        "cascade",
        "target",
        {},
        ("costs 0.40 of a target pass and may cost 0.41", "0.94 times the one without it: it does not pay"),
    ),
    ("cascade", "target", {"so_far": SO_FAR | {"verifying": 72.0}}, ("times the one without it: it pays here",)),
    ("cascade", "target", {"so_far": None, "forecast": FORECAST | {"gain": 0.97}}, ("0.97 times", "it does not pay here")),
    ("cascade", "target", {"forecast": None}, ("no break-even curve",)),
    ("layer_groups", "rows", {}, ("3 stages instead of 6",)),
    ("layer_groups", "repaired", {"calibrated": False, "likeness": [], "fuzzy": 9}, ("9 cached tokens stay fuzzy",)),
    (
        "drafter_selection",
        "",
        {},
        ("code drafts this round; its probability was 0.70.", "maths would have brought the most: 2.75 tokens"),
    ),
    ("drafter_selection", "", {"informed": False}, ("This chooser does not get to know that.",)),
    ("last_state", "", {}, ("The memories expect only 0.75 right tokens, less than 1.50, so the network drafts.",)),
    ("last_state", "", {"half": "suffix", "score": 2.0}, ("The memories expect 2.00 right tokens, at least 1.50",)),
    ("last_state", "", {"score": 0.0, "threshold": 0.0}, ("The memories know nothing to draft here, so the network drafts.",)),
    ("suffix", "", {}, ("The last 2 tokens occur 3 times in this text", "allows 4 tokens", "The target kept 2 of", "·sky 2×")),
    ("suffix", "", {"source": "none", "rows": [], "tried": []}, ("Nothing is known to have followed",)),
    ("suffix", "", {"used": False}, ("below the threshold",)),
    ("merged_tree", "", {}, ("5 nodes of 9 went to the target", "Expected 2.75 tokens, got 3.", "2, 1 kept", "both agree")),
    ("batch_cache", "", {}, ("The sweep moved what is kept to the front: 3 holes gone",)),
    (
        "batch_cache",
        "",
        {"swept": False},
        ("3 rejected nodes lie between kept ones, masked; every 4 rounds a sweep closes them.",),
    ),
    (
        "batch_cache",
        "",
        {"rows": [{"row": 0, "runs": [400], "holes": 0}, {"row": 1, "runs": [30], "holes": 0}]},
        ("from slot 23",),
    ),
    ("denoised", "masks", {}, ("2 masks stand behind the text",)),
    ("denoised", "", {}, ("The target kept 2 tokens of 2",)),
    (
        "denoised",
        "corrected",
        CORRECTED,
        ("at place 1", "sea", "goes from 0.30 to 0.70", "predicted 0.90", "before the correction"),
    ),
    ("denoised", "", {"rates": [0.9, 0.3]}, ("The target kept 2 tokens of 2", "predicted 0.30")),
    ("lattice", "place 0", {}, ("At place 1 the 2 best beams survive",)),
    ("lattice", "", {}, ("At 2 places it is not the likeliest token that was taken.", "At the fence the text should be over")),
    ("lattice", "", {"ended": True}, ("takes the end of the text",)),
    ("beam_mass", "", {"below": [0.02, 0.217, 0.7]}, ("In the calibration 22 % of the beams at this level held less.",)),
    ("beam_mass", "", {"forward": 0.00714}, ("for the machine of this run, where a drafter forward takes 0.0071 target passes",)),
    ("step_embeddings", "", {}, ("Of the levels reached so far, how often the target took a drafted token.", "75 % of 4")),
    ("frontier", "", {}, ("The whole tree of 5 nodes: 2.55 tokens expected, 3 came.",)),
    ("frontier", "2", {}, ("The first 2 of 5 nodes: 2.32 tokens expected, 2 came.", "give 2.00 tokens")),
    ("growth", "", {"depth": DEEP}, ("Trees have at most 2 levels", "1.15× the target alone")),
    ("growth", "", {"depth": {"levels": 4}}, ("at most 4 levels, the usual depth",)),
    ("growth", "", {"depth": {"levels": "many"}}, ("go to the target",)),
]
MOMENT = """
const on = { ...stageOf(step), moments: given.moment ? { [given.kind]: given.moment } : {}, cursor: 0 };
on.trace = { steps: [step] };
noteRegistry.draw(pane, on);
return [said(pane), all(pane).map((one) => one.attributes.class || "")];
"""


@pytest.mark.spread(10)
@pytest.mark.parametrize(("kind", "moment", "change", "words"), SAID)
def test_a_panel_says_what_its_numbers_mean(
    node: Evaluate, kind: str, moment: str, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    given = {"step": step(kind, NOTES[kind] | change), "kind": kind, "moment": moment}
    text, _ = node(PAGE + MOMENT, given)
    assert [word for word in words if word not in text] == []
    assert "takes the end" not in text or change.get("ended"), "the fence is no end"
    assert "at most" not in text or isinstance(change.get("depth", {}).get("levels", 1), int)


@pytest.mark.parametrize("kind", ["denoised", "lattice", "frontier"])
def test_a_veiled_step_keeps_its_verdict_back(node: Evaluate, kind: str) -> None:
    covered = step(kind, NOTES[kind]) | {"emitted": [], "pieces": [], "path": [], "bonus": None}
    for one in covered["nodes"][1:]:
        one[5] = "skipped"
    text, classes = node(PAGE + MOMENT, {"step": covered, "kind": kind, "moment": ""})
    assert "kept" not in text and not any("sv-is-accepted" in one or "sv-is-rejected" in one for one in classes)


def test_curves_by_length_are_drawn_where_the_target_was_measured(node: Evaluate) -> None:
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
    assert "a \\u003ccopy>" in bundle.written([MADE_UP]) and "const MEASURED = [];" in bundle.written([])


RECORDED = noted()


@pytest.mark.parametrize("kind", sorted({*RECORDED, *NOTES}))
def test_damaged_notes_never_break_the_pane(node: Evaluate, kind: str) -> None:
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


def test_tokens_kept_by_a_relaxed_rule_stand_in_the_key(node: Evaluate) -> None:
    heads = {"heads": [{"head": 1, "tokens": [2, 3], "texts": [" sky", " sea"], "probability": [0.6, 0.2]}]}
    relaxed = step("heads", heads)
    relaxed["nodes"][1][5] = "relaxed"
    text, classes = node(PAGE + "return [said(pane), classes];", {"step": relaxed})
    assert "relaxed: the strict rule would have rejected it" in text and "sv-cell sv-is-relaxed" in classes
    assert "relaxed" not in drawn(node, "heads", heads)[0]
