"""The panels of choices, under a page without a browser: what they say, and that nothing breaks them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.viewer.conftest import Evaluate
from tests.viewer.test_lookup_notes import JUNK, PAGE, drawn, step
from tests.views.choice_notes import CHOICE


def test_arms_say_who_drafts_and_who_would_have_brought_more(node: Evaluate) -> None:
    text, classes = drawn(node, "arms", CHOICE["arms"] | {"expected": [1.5, 2.75, 1.0]})
    assert "code drafts this round; its chance was 0.70." in text
    assert "maths would have brought the most: 2.75 tokens along the text that was written." in text
    assert "delay queue: 2 chains still to be judged" in text and "from 14" in text
    # Three written tokens, of which the arm that drafted had a chance of each; a ghost; the key has one of each kind.
    assert classes.count("sv-ghost") == 1 + 1 and classes.count("sv-drop") == 2 + 3 + 1
    assert classes.count("sv-keptmark") == 3 + 1 + (2 + 1), "discs, the key, and what is known in the queue"
    assert classes.count("sv-never") == (4 - 2) + (4 - 1)


def test_a_bandit_has_a_river_and_no_ghosts(node: Evaluate) -> None:
    blind = {key: CHOICE["arms"][key] for key in ("names", "chances", "drafted", "ahead")} | {"informed": False}
    text, classes = drawn(node, "arms", blind)
    assert "learns from the arm that drafted alone" in text
    assert "sv-arm sv-arm-0" in classes and "sv-ghost" not in classes
    told, _ = drawn(node, "arms", CHOICE["arms"] | {"informed": False})
    assert "This chooser does not get to know that." in told


def test_the_river_has_a_band_an_arm_over_all_steps(node: Evaluate) -> None:
    body = """
    stage.trace = { steps: [0, 1, 2].map(() => step) };
    stage.cursor = 1;
    stage.column = 400;
    notebook.draw(pane, stage);
    const bands = all(pane).filter((one) => one.tag === "path" && /^sv-arm sv-arm-/.test(one.attributes.class || ""));
    return bands.map((one) => [one.attributes.class, (one.attributes.d.match(/H/g) || []).length]);
    """
    found = node(PAGE + body, {"step": step("arms", CHOICE["arms"])})
    assert found == [[f"sv-arm sv-arm-{arm}", 6] for arm in range(3)]


def test_length_has_a_badge_and_a_mark_for_every_step(node: Evaluate) -> None:
    text, classes = drawn(node, "last_state", CHOICE["last_state"])
    assert "the network's tree" in text and "sv-badge sv-half-tree" in classes
    assert "The memories expect only 0.75 right tokens, less than 1.50, so the network drafts." in text
    assert "the state of a [SPEC] token behind it, which nobody else reads" in text
    copied = CHOICE["last_state"] | {"half": "suffix", "score": 2.0}
    text, classes = drawn(node, "last_state", copied)
    assert "The memories expect 2.00 right tokens, at least 1.50" in text and "sv-badge sv-half-suffix" in classes
    assert classes.count("sv-heat") == 2, "the step and the key"
    alone, _ = drawn(node, "last_state", CHOICE["last_state"] | {"score": None, "threshold": None, "probed": False})
    assert "Of 13 tokens of text the network sees the last one's state: nothing grows with the text." in alone


def test_a_click_on_a_mark_goes_to_its_step(node: Evaluate) -> None:
    body = """
    stage.trace = { steps: [0, 1, 2].map(() => step) };
    stage.cursor = 2;
    notebook.draw(pane, stage);
    const marks = all(pane).filter((one) => one.attributes["data-step"] !== undefined);
    return marks.map((one) => one.attributes["data-step"]);
    """
    assert node(PAGE + body, {"step": step("last_state", CHOICE["last_state"])}) == ["0", "1", "2"]


@pytest.mark.parametrize("kind", CHOICE)
def test_damaged_notes_never_break_the_pane(node: Evaluate, kind: str) -> None:
    steps = [step(kind, copy.deepcopy(CHOICE[kind]) | {field: junk}) for field in CHOICE[kind] for junk in JUNK]
    body = """
    return given.steps.map((one) => {
      const stage = stageOf(study.step(one));
      stage.trace = { steps: [stage.step] };
      stage.cursor = 0;
      notebook.draw(pane, stage);
      return all(pane).every((el) => !/NaN|undefined|Infinity/.test(JSON.stringify(el.attributes)));
    });
    """
    found: Any = node(PAGE + body, {"step": steps[0], "steps": steps})
    assert all(found)
