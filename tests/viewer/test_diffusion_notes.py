"""The panels of blocks that are filled at once, under a page without a browser: what they say, and that nothing breaks them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.viewer import cases
from tests.support.viewer.node import Evaluate
from tests.support.viewer.notes import DIFFUSION
from tests.support.viewer.panes import JUNK, PAGE


def step(kind: str, data: dict[str, Any], veiled: bool = False) -> dict[str, Any]:
    nodes = [
        cases.node(-1, " the", "root"),
        cases.node(0, " sea", "accepted", 0.3, 0.6),
        cases.node(1, " was", "rejected", 0.3, 0.1),
    ]
    for node, token in zip(nodes, (1, 3, 5), strict=True):
        node[1] = token
    bonus = None if veiled else [1, 8, " blue", 0.5, "target"]
    made = cases.step(0, nodes, [] if veiled else [1], bonus, notes=[{"type": kind, **data}])
    return made | ({"emitted": [], "pieces": []} if veiled else {})


def drawn(node: Evaluate, kind: str, moment: str | None = None, veiled: bool = False, data: Any = None) -> Any:
    """The panel's words and its elements' classes at a moment of its story."""
    body = (
        PAGE
        + """
    const on = stageOf(step);
    on.moments = { [given.kind]: given.moment };
    on.trace = { steps: [step, { ...step, counts: { ...step.counts, kept: 2 } }, step] };
    noteRegistry.draw(pane, on);
    const of = (name) => all(pane).map((one) => one.attributes[name] || "");
    return [said(pane), of("class"), of("aria-label").join(" ")];
    """
    )
    return node(body, {"step": step(kind, data or DIFFUSION[kind], veiled), "kind": kind, "moment": moment})


def test_masks_become_tokens_and_tokens_get_verdicts(node: Evaluate) -> None:
    text, classes, _ = drawn(node, "denoised", "masks")
    assert "2 masks stand behind the text" in text and "mask 2" in text and "·sea" not in text
    text, classes, _ = drawn(node, "denoised", "resolved")
    assert "One drafter pass resolves all 2 masks at once" in text and "·sea" in text and "mask 2" not in text
    assert not any("sv-is-accepted" in one for one in classes), "nobody has judged yet"
    text, classes, spoken = drawn(node, "denoised")
    assert "The target kept 1 token of 2" in text
    assert sum("sv-is-accepted" in one for one in classes) == sum("sv-is-rejected" in one for one in classes) == 1
    assert "0: 0 steps, 1: 2 steps, 2: 1 step" in spoken
    assert sum(one == "sv-length-bar-current" for one in classes) == 1, "the bar of this length"


def test_a_veiled_step_keeps_its_verdict_back(node: Evaluate) -> None:
    text, classes, _ = drawn(node, "denoised", None, veiled=True)
    assert "kept" not in text and not any("sv-is-accepted" in one or "sv-is-rejected" in one for one in classes)
    text, classes, _ = drawn(node, "lattice", None, veiled=True)
    assert "kept" not in text and not any("sv-is-accepted" in one or "sv-is-rejected" in one for one in classes)


def lines(classes: list[str]) -> tuple[int, int]:
    """Beams' lines in the picture and those of the drafted path; the key has one of each."""
    return sum("sv-beam-line" in one for one in classes) - 2, sum("sv-path-line" in one for one in classes) - 1


def test_the_search_goes_place_by_place_and_ends_with_the_path(node: Evaluate) -> None:
    text, classes, _ = drawn(node, "lattice", "lattice")
    assert "none knows the others" in text and lines(classes) == (0, 0)
    text, classes, _ = drawn(node, "lattice", "place 0")
    assert "At place 1 the 2 best beams survive" in text
    assert sum("sv-in-beam" in one for one in classes) == 2 and lines(classes) == (0, 0)
    text, classes, _ = drawn(node, "lattice")
    assert "At 2 places it is not the likeliest token that was taken." in text
    assert "At the fence the text should be over" in text and "The target kept 1 of 2." in text
    assert "takes the end" not in text, "the lattice was cut where the path does not end"
    assert lines(classes) == (2, 1)
    assert any("sv-fence" in one for one in classes)
    assert "masks now" in text and "accepted, mean" in text


@pytest.mark.parametrize("told", [{"ended": True, "fence": None}, {"ended": True}, {}])
def test_a_path_that_takes_the_end_is_told_apart_from_the_fence(node: Evaluate, told: dict[str, object]) -> None:
    """An older recording has the fence alone, and only where the path ended."""
    data = {key: value for key, value in DIFFUSION["lattice"].items() if key != "ended"} | told
    text, classes, _ = drawn(node, "lattice", data=data)
    assert "takes the end of the text" in text
    assert any("sv-fence" in one for one in classes) == (data["fence"] is not None)


@pytest.mark.parametrize("kind", DIFFUSION)
def test_damaged_notes_never_break_the_pane(node: Evaluate, kind: str) -> None:
    steps = [step(kind, copy.deepcopy(DIFFUSION[kind]) | {field: junk}) for field in DIFFUSION[kind] for junk in JUNK]
    body = (
        PAGE
        + """
    const found = [];
    for (const one of given.steps) {
      const on = stageOf(parseStep(one));
      on.trace = { steps: [on.step] };
      noteRegistry.draw(pane, on);
      noteRegistry.overlay(on);
      found.push(all(pane).every((el) => !/NaN|undefined/.test(JSON.stringify(el.attributes))));
    }
    return found;
    """
    )
    assert all(node(body, {"step": steps[0], "steps": steps}))
