"""Depth by mass: a tree goes no deeper once its beam holds too little, and the threshold can be calibrated."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from specviz.errors import BadInput
from specviz.methods.ddd.depth import BeamMass, CalibratedDepth, log_mass
from specviz.trees.dynamic import Dynamic, SpeedupMaximising
from tests.support.worlds.fancy import Fancy, context, paths, searched


def test_the_mass_is_that_of_the_kept_beam_only() -> None:
    drafter = Fancy(3)
    story = Dynamic(3, 2, 6, BeamMass(-99.0, ())).build(drafter, context()).notes[-1].data
    candidates = searched(drafter, 3, 2)
    for level, mass in enumerate(story["mass"], start=1):
        best = sorted((value for path, value in candidates.items() if len(path) == level), reverse=True)[:2]
        assert mass == pytest.approx(math.log(sum(map(math.exp, best))))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("levels", [(), (2, 4), (5, 7, 9)])
def test_it_stops_at_the_first_tested_level_with_too_little_mass(seed: int, levels: tuple[int, ...]) -> None:
    drafter, rule = Fancy(seed, 3.0), BeamMass(-0.5, levels)
    deep = Dynamic(11, 3, 20, BeamMass(-math.inf, levels)).build(Fancy(seed, 3.0), context()).notes[-1].data["mass"]
    draft = Dynamic(11, 3, 20, rule).build(drafter, context())
    light = [level for level in range(1, 11) if rule.tests(level) and deep[level - 1] < -0.5]
    expected = light[0] if light else 11
    story = draft.notes[-1].data
    assert draft.calls == expected == len(story["mass"])
    assert story["stopped"] == (expected if light else None)
    assert story["tested"] == [level for level in range(1, 11) if rule.tests(level) and level <= expected]
    assert story["limit"] == 11


def test_the_published_rule_tests_three_levels_of_eleven() -> None:
    doubtful = Fancy(temperature=0.1)
    assert Dynamic(11, 3, 20, BeamMass(-0.3)).build(doubtful, context()).calls == 5
    sure = Fancy(temperature=60.0)
    assert Dynamic(11, 3, 20, BeamMass(-0.3)).build(sure, context()).calls == 11


def test_little_room_is_no_stop() -> None:
    story = Dynamic(11, 3, 20, BeamMass(0.0, (5,))).build(Fancy(), context(room=6)).notes[-1].data
    assert (story["stopped"], story["tested"], story["limit"]) == (None, [], 5)


def test_log_mass_survives_tiny_values() -> None:
    assert log_mass([-2000.0, -2000.0]) == pytest.approx(-2000.0 + math.log(2))


def test_a_calibration_can_be_read_again(tmp_path: Path) -> None:
    rows = ((-3.0, 3.0, 6.0), (-1.25, 2.5, 3.25))
    made = CalibratedDepth(rows, 11.5, {2: (-3.0, -1.0, -0.1), 1: (-2.0, -0.5, 0.0)}, "eagle3", "tiny", "a test")
    made.save(tmp_path / "depth.json")
    assert CalibratedDepth.load(tmp_path / "depth.json") == made


OWNED = '"quantiles": {}, "nodes": 9, "drafter": "eagle3", "target": "tiny"'


@pytest.mark.parametrize(
    "text", ["", "[]", '{"thresholds": 1}', f'{{"thresholds": [], {OWNED}}}', f'{{"thresholds": [[-1.0, 2.0]], {OWNED}}}']
)
def test_a_broken_calibration_says_how_to_make_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "depth.json").write_text(text)
    with pytest.raises(BadInput, match=r"depth.json is no calibrated depth .*calibrate"):
        CalibratedDepth.load(tmp_path / "depth.json")
    with pytest.raises(BadInput):
        CalibratedDepth.load(tmp_path / "missing.json")


def test_a_calibration_that_does_not_say_whose_it_is_is_refused(tmp_path: Path) -> None:
    (tmp_path / "depth.json").write_text('{"thresholds": [[-1.0, 2.0, 3.0]], "nodes": 9, "quantiles": {"1": [-1.0, 0.0]}}')
    with pytest.raises(BadInput, match="calibrate ddd"):
        CalibratedDepth.load(tmp_path / "depth.json")


def test_the_threshold_is_told_as_the_quantile_that_it_is() -> None:
    deciles = tuple(-3.0 + 0.3 * place for place in range(11))
    levels = {1: tuple(one / 2 for one in deciles), 2: deciles, 3: (-9.0, -3.0)}
    below = CalibratedDepth(((-2.25, 2.0, 3.0),), 9, levels, "eagle3", "tiny").below(-2.25)
    assert below == (0.0, 0.25, 1.0)
    story = Dynamic(6, 3, 8, BeamMass(-2.25, (), below, 0.07)).build(Fancy(1), context()).notes[-1].data
    assert (story["below"], story["forward"]) == ([0.0, 0.25, 1.0], 0.07)
    assert not {"below", "forward"} & set(Dynamic(6, 3, 8, BeamMass(-2.25)).build(Fancy(1), context()).notes[-1].data)


THRESHOLDS = ((-4.0, 3.2, 8.0), (-2.0, 3.1, 5.0), (-1.0, 2.9, 3.0), (-0.2, 2.0, 1.5))


@pytest.mark.parametrize(
    ("forward", "dear_nodes", "nodes", "expected"),
    [
        (0.0, False, 0, -4.0),
        (0.02, False, 0, -2.0),
        (0.07, False, 0, -1.0),
        (1.0, False, 0, -0.2),
        (0.07, True, 0, -2.0),  # where the pass itself is dear, tokens count for more
        (0.07, True, 2, -1.0),  # but not of a tree of two
    ],
)
def test_the_threshold_is_the_one_that_pays_where_it_runs(
    forward: float, dear_nodes: bool, nodes: int, expected: float
) -> None:  # fmt: skip
    cost = np.array([1.0 + (0.4 * count if dear_nodes and count > 2 else 0.03 * count) for count in range(30)])
    calibration = CalibratedDepth(THRESHOLDS, 9.6, {}, "eagle3", "tiny")
    assert calibration.that_pays(SpeedupMaximising(cost, forward), nodes) == expected
    assert calibration.that_pays(SpeedupMaximising(3 * cost, 3 * forward), nodes) == expected, "whatever the unit"


def test_of_thresholds_that_pay_alike_the_shallowest_is_taken() -> None:
    free = SpeedupMaximising(np.ones(30), 0.0)
    assert CalibratedDepth(((-3.0, 3.0, 6.0), (-1.0, 3.0, 4.0), (-0.5, 2.0, 2.0)), 9, {}, "a", "b").that_pays(free) == -1.0


def test_stopping_early_keeps_what_was_found() -> None:
    drafter = Fancy(1)
    draft = Dynamic(6, 3, 8, BeamMass(0.0, (2,))).build(drafter, context())
    candidates = searched(Fancy(1), 2, 3)
    best = sorted(candidates, key=lambda path: -candidates[path])[:8]
    assert sorted(paths(draft)[1:]) == sorted(best)
    assert all(len(path) <= 2 for path in paths(draft))
