"""The panels of trained drafters, under a page without a browser: what their words and their keys say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.viewer import cases
from tests.support.viewer.node import Evaluate
from tests.support.viewer.panes import PAGE, drawn

HEADS = {
    "heads": [
        {"head": 1, "tokens": [2, 3], "texts": [" sky", " sea"], "probability": [0.6, 0.2]},
        {"head": 2, "tokens": [4, 5], "texts": [" is", " was"], "probability": [0.5, 0.1]},
    ]
}
MASS = {"mass": [-0.1, -0.9], "tested": [1, 2], "threshold": -0.5, "stopped": 2, "limit": 4}


def relaxed_step() -> dict[str, Any]:
    nodes = [
        cases.node(-1, " the", "root"), cases.node(0, " sky", "relaxed", 0.8, 0.2, 0.09),
        cases.node(0, " sea", "rejected", 0.1, 0.01, 0.09),
    ]  # fmt: skip
    for place, token in enumerate((1, 2, 3)):
        nodes[place][1] = token
    note = {"type": "heads", **HEADS}
    return cases.step(0, nodes, [1], [1, 8, " blue", 0.5, "target"], rule="typical", notes=[note])


def test_tokens_kept_by_a_relaxed_rule_stand_in_the_key(node: Evaluate) -> None:
    text, classes = node(PAGE + "return [said(pane), classes];", {"step": relaxed_step()})
    assert "relaxed: the strict rule would have rejected it" in text
    assert classes.count("sv-cell sv-is-relaxed") == 2 == classes.count("sv-inner"), "the token, and its sample in the key"
    text, classes = drawn(node, "heads", HEADS)
    assert "relaxed" not in text and "sv-inner" not in classes


def test_a_light_beam_is_told_as_the_quantile_that_it_was(node: Evaluate) -> None:
    text, _ = drawn(node, "mass", MASS | {"below": [0.02, 0.217, 0.7]})
    assert "In the calibration 22 % of the beams at this level held less." in text
    assert "calibration" not in drawn(node, "mass", MASS)[0], "older traces do not say"


@pytest.mark.spread(1)
@pytest.mark.parametrize("stopped", [2, None])
def test_a_threshold_that_was_chosen_by_costs_says_so(node: Evaluate, stopped: int | None) -> None:
    text, _ = drawn(node, "mass", MASS | {"stopped": stopped, "forward": 0.00714})
    assert "chosen by a calibration for the machine of this run, where a drafter forward takes 0.0071 target passes" in text
    for untold in ({}, {"forward": 0.07, "tested": []}):
        assert "was chosen" not in drawn(node, "mass", MASS | {"stopped": stopped, **untold})[0]


GROWTH = {
    "beams": [[0], [1, 2], [3, 4]], "value": [0, -0.2, -1.9, -0.7, -1.4, -2.6, -4.2], "kept": 6, "considered": 9,
}  # fmt: skip


def test_growth_says_why_trees_are_as_deep_as_they_are_where_nobody_stated_it(node: Evaluate) -> None:
    def told(depth: object) -> str:
        return drawn(node, "growth", GROWTH | {"depth": depth})[0]

    chosen = told({"levels": 2, "nodes": 8, "tau": 1.8, "gain": 1.152, "forward": 0.1})
    assert "Trees have at most 2 levels" in chosen and "1.15× the target alone" in chosen
    assert "at most 4 levels, the usual depth" in told({"levels": 4})
    assert "go to the target" in drawn(node, "growth", GROWTH)[0], "the moment the story opens at"
    for nothing in (None, {"levels": "many"}, 3):
        assert "at most" not in told(nothing)
