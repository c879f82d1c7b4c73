"""The panels of choices, under a page without a browser: what they say, and that nothing breaks them."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

import pytest

from specviz.viewer import bundle
from tests.support.traces.length_curves import MADE_UP
from tests.support.viewer.node import Evaluate
from tests.support.viewer.notes import CHOICE
from tests.support.viewer.panes import JUNK, PAGE, drawn, step


def test_arms_say_who_drafts_and_who_would_have_brought_more(node: Evaluate) -> None:
    text, classes = drawn(node, "arms", CHOICE["arms"] | {"expected": [1.5, 2.75, 1.0]})
    assert "code drafts this round; its probability was 0.70." in text
    assert "maths would have brought the most: 2.75 tokens along the text that was written." in text
    assert "delay queue: 2 chains still to be judged" in text and "from 14" in text
    # Three written tokens, of which the arm that drafted had a probability of each; a ghost; the key has one of each kind.
    assert classes.count("sv-would-accept") == 1 + 1 and classes.count("sv-drop-line") == 2 + 3 + 1
    assert classes.count("sv-accepted-mark") == 3 + (2 + 1), "discs, and what is known in the queue"
    assert classes.count("sv-absent") == (4 - 2) + (4 - 1)


def test_a_bandit_has_a_river_and_no_ghosts(node: Evaluate) -> None:
    blind = {key: CHOICE["arms"][key] for key in ("names", "chances", "drafted", "ahead")} | {"informed": False}
    text, classes = drawn(node, "arms", blind)
    assert "learns from the arm that drafted alone" in text
    assert "sv-arm sv-arm-0" in classes and "sv-would-accept" not in classes
    told, _ = drawn(node, "arms", CHOICE["arms"] | {"informed": False})
    assert "This chooser does not get to know that." in told


def test_the_river_has_a_band_an_arm_over_all_steps(node: Evaluate) -> None:
    body = """
    stage.trace = { steps: [0, 1, 2].map(() => step) };
    stage.cursor = 1;
    stage.column = 400;
    noteRegistry.draw(pane, stage);
    const bands = all(pane).filter((one) => one.tag === "path" && /^sv-arm sv-arm-/.test(one.attributes.class || ""));
    return bands.map((one) => [one.attributes.class, (one.attributes.d.match(/H/g) || []).length]);
    """
    found = node(PAGE + body, {"step": step("arms", CHOICE["arms"])})
    assert found == [[f"sv-arm sv-arm-{arm}", 3] for arm in range(3)], "a height for every step"


def test_length_has_a_badge_and_a_mark_for_every_step(node: Evaluate) -> None:
    text, classes = drawn(node, "last_state", CHOICE["last_state"])
    assert "the network's tree" in text and "sv-badge sv-half-tree" in classes
    assert "The memories expect only 0.75 right tokens, less than 1.50, so the network drafts." in text
    assert "the state of a [SPEC] token behind it, which nothing else reads" in text
    copied = CHOICE["last_state"] | {"half": "suffix", "score": 2.0}
    text, classes = drawn(node, "last_state", copied)
    assert "The memories expect 2.00 right tokens, at least 1.50" in text and "sv-badge sv-half-suffix" in classes
    assert classes.count("sv-candidate-mark") == 2, "the step and the key"
    alone, _ = drawn(node, "last_state", CHOICE["last_state"] | {"score": None, "threshold": None, "probed": False})
    assert "Of 13 tokens of text the network sees the last one's state: nothing grows with the text." in alone


def test_where_nothing_is_known_the_sentence_does_not_compare_nought_with_nought(node: Evaluate) -> None:
    text, _ = drawn(node, "last_state", CHOICE["last_state"] | {"score": 0.0, "threshold": 0.0})
    assert "The memories know nothing to draft here, so the network drafts." in text and "less than" not in text


def test_every_step_has_the_badge_of_the_half_that_drafted_it(node: Evaluate) -> None:
    halves = ["tree", "suffix", "suffix", "tree"]
    notes = [CHOICE["last_state"] | {"half": half, "length": 13 + at} for at, half in enumerate(halves)]
    body = """
    const steps = given.steps.map((one) => parseStep(one));
    return steps.map((one, at) => {
      const there = { ...stageOf(one), trace: { steps }, cursor: at };
      noteRegistry.draw(pane, there);
      const marks = all(pane).filter((part) => part.attributes["data-step"] !== undefined);
      const badges = all(pane).filter((part) => /sv-badge/.test(part.attributes.class || ""));
      return [badges.map((part) => [part.attributes.class, said(part)]), marks.map((part) => part.attributes.class)];
    });
    """
    steps = [step("last_state", note) for note in notes]
    found: Any = node(PAGE + body, {"step": steps[0], "steps": steps})
    badge = {"tree": ["sv-badge sv-half-tree", "the network's tree"], "suffix": ["sv-badge sv-half-suffix", "copied from memory"]}
    mark = {"tree": "sv-accepted-mark", "suffix": "sv-candidate-mark"}
    assert found == [[[badge[half]], [mark[one] for one in halves]] for half in halves]


def test_curves_by_length_are_drawn_where_the_target_was_measured(node: Evaluate) -> None:
    body = """
    const there = (target) => ({ ...stageOf(step), trace: { steps: [step], run: { target } }, cursor: 0 });
    const drawn = (target) => {
      noteRegistry.draw(pane, there(target));
      const paths = all(pane).filter((one) => one.tag === "path" && /^M.*L/.test(one.attributes.d || ""));
      return [said(pane), paths.filter((one) => /sv-curve/.test(one.attributes.class)).map((one) => one.attributes)];
    };
    const before = drawn("tiny")[0];
    modules.generated.MEASURED.splice(0, Infinity, given.curves);
    return [before, drawn("tiny"), drawn("another")[0]];
    """
    given = {"curves": asdict(MADE_UP)}
    tree, copied = (
        node(PAGE + body, {"step": step("last_state", CHOICE["last_state"] | {"half": half}), **given})
        for half in ("tree", "suffix")
    )
    before, (text, paths), other = tree
    assert "Measured" not in before + other, "nothing is drawn that nobody measured"
    assert (
        "Tokens per pass (τ) when it answers, by the length of the text before; the ring is this run" in text and "4096" in text
    )
    assert "Measured 2026-01-02: two questions and a <copy>." in text
    lines = [one for one in paths if one["d"].count("L") == 3]
    assert [one["class"] for one in lines] == ["sv-curve sv-curve-0", "sv-curve sv-curve-1"]
    assert "when it copies" in copied[1][0] and "howl" in copied[1][0] and "eagle3" not in copied[1][0]


def test_measured_curves_travel_with_the_script_and_are_safe_there() -> None:
    script = bundle.written([MADE_UP])
    assert '"target":"tiny"' in script and "a \\u003ccopy>" in script
    assert "const MEASURED = [];" in bundle.written([])


def test_a_click_on_a_mark_goes_to_its_step(node: Evaluate) -> None:
    body = """
    stage.trace = { steps: [0, 1, 2].map(() => step) };
    stage.cursor = 2;
    noteRegistry.draw(pane, stage);
    const marks = all(pane).filter((one) => one.attributes["data-step"] !== undefined);
    return marks.map((one) => one.attributes["data-step"]);
    """
    assert node(PAGE + body, {"step": step("last_state", CHOICE["last_state"])}) == ["0", "1", "2"]


@pytest.mark.parametrize("kind", CHOICE)
def test_damaged_notes_never_break_the_pane(node: Evaluate, kind: str) -> None:
    steps = [step(kind, copy.deepcopy(CHOICE[kind]) | {field: junk}) for field in CHOICE[kind] for junk in JUNK]
    body = """
    return given.steps.map((one) => {
      const stage = stageOf(parseStep(one));
      stage.trace = { steps: [stage.step] };
      stage.cursor = 0;
      noteRegistry.draw(pane, stage);
      return all(pane).every((el) => !/NaN|undefined|Infinity/.test(JSON.stringify(el.attributes)));
    });
    """
    found: Any = node(PAGE + body, {"step": steps[0], "steps": steps})
    assert all(found)
