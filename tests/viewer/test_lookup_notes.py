"""The panels of drafts that are looked up, under a page without a browser: what they say, and that nothing breaks them."""

from __future__ import annotations

import copy

import pytest

from tests.support.viewer.node import Evaluate
from tests.support.viewer.notes import RETRIEVAL
from tests.support.viewer.panes import JUNK, PAGE, drawn, step


def test_suffix_tells_match_allowance_and_counts(node: Evaluate) -> None:
    text, classes = drawn(node, "suffix", RETRIEVAL["suffix"])
    assert "The last 2 tokens occur 3 times in this text; a match that long allows 4 tokens." in text
    assert "The target kept 2 of" in text
    assert "·sky 2×" in text and "·sun 1×" in text
    assert "sv-used sv-is-accepted" in classes and "sv-unused" in classes
    assert sum(one == "sv-accepted-mark" for one in classes) == 1, "one match length won"
    assert "sv-threshold-line" in classes, "the threshold stands in the chart"


def test_suffix_without_a_match_says_so(node: Evaluate) -> None:
    data = RETRIEVAL["suffix"] | {"source": "none", "rows": [], "tried": []}
    assert "Nothing is known to have followed" in drawn(node, "suffix", data)[0]
    assert "below the threshold" in drawn(node, "suffix", RETRIEVAL["suffix"] | {"used": False})[0]


def test_merged_counts_what_every_source_brought_and_colours_the_tree(node: Evaluate) -> None:
    text, classes = drawn(node, "merged", RETRIEVAL["merged"])
    assert "5 nodes of 9 went to the target" in text
    assert "Expected 2.75 tokens, got 3." in text
    assert "2, 1 kept" in text and "both agree" in text
    assert {"sv-src-drafter", "sv-src-context", "sv-src-outputs", "sv-src-both"} <= set(classes)
    ask = """noteRegistry.overlay(stage).under({ items: new Map(step.nodes.map((node, id) =>
      [id, { id, kind: "node", x: 10 * id, y: 5, w: 40 }])) }).map((one) => one && one.attributes.class)"""
    grounds = drawn(node, "merged", RETRIEVAL["merged"], ask)
    assert grounds[0] is None, "the root has no source"
    assert [one.split()[0][len("sv-src-") :] for one in grounds[1:]] == [
        "drafter", "context", "both", "drafter", "outputs", "context",
    ]  # fmt: skip


def test_rows_show_holes_and_the_sweep_closes_them(node: Evaluate) -> None:
    text, classes = drawn(node, "rows", RETRIEVAL["rows"] | {"swept": False})
    assert "3 rejected nodes lie between kept ones, masked; every 4 rounds a sweep closes them." in text
    assert (classes.count("sv-slot"), classes.count("sv-hole")) == (3 + 1, 1 + 1), "drawn ones and those of the key"
    text, classes = drawn(node, "rows", RETRIEVAL["rows"])
    assert "The sweep moved what is kept to the front: 3 holes gone" in text
    assert (classes.count("sv-slot"), classes.count("sv-hole")) == (2 + 1, 0 + 1)


def test_a_long_prompt_that_all_rows_kept_is_left_out(node: Evaluate) -> None:
    long = [{"row": 0, "runs": [400, 3, 4], "holes": 3}, {"row": 1, "runs": [380, 2, 6], "holes": 2}]
    text, classes = drawn(node, "rows", RETRIEVAL["rows"] | {"rows": long, "swept": False})
    assert "from slot 328: all before it is kept in every row" in text
    assert classes.count("sv-hole") == 2 + 1
    boxes = """all(pane).filter((one) => one.attributes.class === "sv-hole").map((one) => Number(one.attributes.width))"""
    assert min(drawn(node, "rows", RETRIEVAL["rows"] | {"rows": long, "swept": False}, boxes)[:2]) > 8, "wide enough to see"
    apart = [{"row": 0, "runs": [400], "holes": 0}, {"row": 1, "runs": [30], "holes": 0}]
    assert "from slot 23" in drawn(node, "rows", RETRIEVAL["rows"] | {"rows": apart, "swept": False})[0]


@pytest.mark.parametrize("kind", RETRIEVAL)
def test_damaged_notes_never_break_the_pane(node: Evaluate, kind: str) -> None:
    steps = []
    for field in RETRIEVAL[kind]:
        for junk in JUNK:
            steps.append(step(kind, copy.deepcopy(RETRIEVAL[kind]) | {field: junk}))
    body = """
    const found = [];
    for (const one of given.steps) {
      const stage = stageOf(parseStep(one));
      noteRegistry.draw(pane, stage);
      const overlay = noteRegistry.overlay(stage);
      if (overlay) overlay.under({ items: new Map() });
      found.push(all(pane).every((el) => !/NaN|undefined/.test(JSON.stringify(el.attributes))));
    }
    return found;
    """
    assert all(node(PAGE + body, {"step": steps[0], "steps": steps}))
