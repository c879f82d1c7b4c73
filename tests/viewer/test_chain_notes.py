"""The panels of chains of models and of layers side by side, under a page without a browser."""

from __future__ import annotations

import copy

import pytest

from tests.support.viewer.node import Evaluate
from tests.support.viewer.notes import CHAINS
from tests.support.viewer.panes import JUNK, PAGE, drawn, step

MOMENT = """
stage.moments[given.step.notes[0].type] = given.moment;
noteRegistry.draw(pane, stage);
return [said(pane), all(pane).map((one) => one.attributes.class || "")];
"""


def at(node: Evaluate, kind: str, moment: str, **change: object) -> tuple[str, list[str]]:
    """What the panel says and draws at a moment of its story."""
    text, classes = node(PAGE + MOMENT, {"step": step(kind, CHAINS[kind] | change), "moment": moment})
    return text, classes


def test_the_buffer_fills_pass_by_pass_and_then_the_target_judges(node: Evaluate) -> None:
    text, classes = at(node, "belts", "pass 0")
    assert "Of 3 drafted nodes the intermediate model took 1 and added its own token. Buffer: 2 of μ = 5." in text
    fresh = [one for one in classes if "sv-fresh" in one]
    assert fresh == ["sv-by-drafter sv-fresh", "sv-by-intermediate sv-fresh"]
    assert classes.count("sv-unfilled") == 4
    text, classes = at(node, "belts", "pass 2")
    assert "Buffer: full: now the target looks." in text
    assert "sv-unfilled" not in classes
    text, classes = at(node, "belts", "target")
    assert "The target judges 6 tokens in one pass, by the intermediate model's probabilities. It kept 2" in text
    assert sum("sv-verdict" in one for one in classes) == 6


def test_the_break_even_curve_has_forecast_and_measured_point(node: Evaluate) -> None:
    text, classes = at(node, "belts", "target")
    assert "costs 0.40 of a target pass and may cost 0.54 by the published condition" in text
    assert "the chain runs at 1.12 times the one without it: it pays here." in text
    assert [one for one in classes if "sv-break-even-point" in one] == [
        "sv-break-even-point sv-pays sv-forecast", "sv-break-even-point sv-pays sv-measured",
    ]  # fmt: skip
    slow = CHAINS["belts"]["so_far"] | {"verifying": 324.0}
    text, classes = at(node, "belts", "target", so_far=slow)
    assert "it does not pay here" in text and "sv-break-even-point sv-costs sv-measured" in classes
    drafter = CHAINS["belts"]["so_far"] | {"drafting": 108.0}
    text, classes = at(node, "belts", "target", so_far=drafter)
    assert "may cost 0.54 by the published condition" in text and "it does not pay here" in text
    assert "sv-break-even-point sv-costs sv-measured" in classes, "the exact form decides, whatever the published condition says"
    forecast = CHAINS["belts"]["forecast"] | {"gain": 0.97}
    text, classes = at(node, "belts", "target", so_far=None, forecast=forecast)
    assert "0.97 times the one without it: it does not pay here" in text and "sv-break-even-point sv-costs sv-forecast" in classes
    text, classes = at(node, "belts", "target", forecast=None)
    assert "no break-even curve" in text and "sv-break-even-curve" not in classes


def test_layers_stand_in_a_stack_then_in_rows_then_the_cells_are_repaired(node: Evaluate) -> None:
    text, classes = at(node, "layers", "stack")
    assert "The draft model has 6 layers, one after the other." in text
    assert classes.count("sv-parallel-cell") == 0 + 1, "only the key's"
    text, classes = at(node, "layers", "rows")
    assert "3 stages instead of 6" in text
    assert classes.count("sv-parallel-cell") == 4 + 1
    tints = "return all(pane).filter((one) => one.attributes.class === 'sv-fuzzy-cell')"
    tints += ".map((one) => one.attributes['fill-opacity']);"
    body = PAGE + "stage.moments.layers = given.moment; noteRegistry.draw(pane, stage);" + tints
    given = {"step": step("layers", CHAINS["layers"])}
    fuzzy, fixed = (node(body, {**given, "moment": moment}) for moment in ("rows", "repaired"))
    assert fuzzy[:-1] == ["0.00", "0.00", "0.02", "0.04", "0.20", "0.30", "0.40", "0.60", "0.50", "0.60", "0.60", "0.70"]
    assert set(fixed[:-1]) == {"0.00"}, "exact after the pass"


def test_no_repair_and_several_devices_are_said(node: Evaluate) -> None:
    text, _ = at(node, "layers", "repaired", calibrated=False, likeness=[], fuzzy=9)
    assert "9 cached tokens stay fuzzy" in text
    text, _ = at(node, "layers", "repaired", devices=["cuda:0", "cuda:1"] * 3)
    assert "Layers lie on cuda:0, cuda:1." in text


@pytest.mark.parametrize("kind", CHAINS)
def test_damaged_notes_never_break_the_pane(node: Evaluate, kind: str) -> None:
    steps = [step(kind, copy.deepcopy(CHAINS[kind]) | {field: junk}) for field in CHAINS[kind] for junk in JUNK]
    body = """
    return given.steps.every((one) => {
      const stage = stageOf(parseStep(one));
      noteRegistry.draw(pane, stage);
      return all(pane).every((el) => !/NaN|undefined|Infinity/.test(JSON.stringify(el.attributes)));
    });
    """
    assert node(PAGE + body, {"step": steps[0], "steps": steps})


def test_both_panels_have_names(node: Evaluate) -> None:
    name = drawn(node, "belts", CHAINS["belts"], "noteRegistry.title(step.notes[0])")
    assert "Cascade" in name
    assert "Layers side by side" in drawn(node, "layers", CHAINS["layers"], "noteRegistry.title(step.notes[0])")
