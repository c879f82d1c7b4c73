"""Depth by mass: a tree goes no deeper once its beam holds too little, and the threshold can be calibrated."""

import math

import numpy as np
import pytest

from specviz.drafting.trees.dynamic import Dynamic, SpeedupPolicy
from specviz.errors import BadInput
from specviz.methods.ddd import CANDIDATES, BeamMass, CalibratedDepth
from tests.support.rounds import context
from tests.support.worlds.fancy import Fancy, paths, searched


def test_the_mass_is_that_of_the_kept_beam_only():
    drafter = Fancy(3)
    story = Dynamic(3, 2, 6, BeamMass(-99.0, ())).build(drafter, context()).notes[-1].data
    candidates = searched(drafter, 3, 2)
    for level, mass in enumerate(story["mass"], start=1):
        best = sorted((value for path, value in candidates.items() if len(path) == level), reverse=True)[:2]
        assert mass == pytest.approx(math.log(sum(map(math.exp, best))))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("levels", [(), (2, 4), (5, 7, 9)])
def test_it_stops_at_the_first_tested_level_with_too_little_mass(seed, levels):
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


def test_a_calibration_can_be_read_again(tmp_path):
    made = calibration(((-0.5, -1.25, -3.0), 2), ((-0.001,), 0))
    made.save(tmp_path / "depth.json")
    assert CalibratedDepth.load(tmp_path / "depth.json") == made


OWNED = '"nodes": 9, "drafter": "eagle3", "target": "tiny"'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"rounds": 1}',
        f'{{"rounds": [], {OWNED}}}',
        f'{{"rounds": [[2]], {OWNED}}}',
        f'{{"rounds": [["a", -1]], {OWNED}}}',
    ],
)
def test_a_broken_calibration_says_how_to_make_one(text, tmp_path):
    (tmp_path / "depth.json").write_text(text)
    with pytest.raises(BadInput, match=r"depth.json is not a depth calibration .*calibrate"):
        CalibratedDepth.load(tmp_path / "depth.json")
    with pytest.raises(BadInput):
        CalibratedDepth.load(tmp_path / "missing.json")


def test_a_calibration_that_does_not_say_whose_it_is_is_refused(tmp_path):
    (tmp_path / "depth.json").write_text('{"rounds": [[2, -1.0, -2.0]], "nodes": 9}')
    with pytest.raises(BadInput, match="calibrate ddd"):
        CalibratedDepth.load(tmp_path / "depth.json")


def calibration(*rounds, nodes=9.6):
    return CalibratedDepth(tuple((accepted, *mass) for mass, accepted in rounds), nodes, "eagle3", "tiny", "a test")


SURE, DOUBTFUL = ((-0.1, -0.2, -0.4, -0.6), 4), ((-0.9, -0.6, -2.2, -3.0), 2)


@pytest.mark.parametrize(
    ("threshold", "asked", "tokens", "forwards"),
    [
        (-9.0, {}, (5, 3), (4, 4)),
        (-2.0, {}, (5, 3), (4, 3)),
        (-0.8, {}, (5, 2), (4, 1)),
        (-0.3, {}, (4, 2), (3, 1)),
        (-0.05, {}, (2, 2), (1, 1)),
        (-0.8, {"depth": 3}, (4, 2), (3, 1)),
        (-0.8, {"levels": (2, 3)}, (5, 3), (4, 3)),
        (-0.3, {"levels": (4,)}, (5, 3), (4, 4)),
        (-2.0, {"nodes": 2}, (3, 3), (4, 3)),
        (-0.3, {"ahead": 3}, (4, 2), (3, 3)),
        (-2.0, {"ahead": 3}, (5, 3), (4, 3)),
        (-0.3, {"ahead": 3, "depth": 2}, (3, 2), (2, 2)),
    ],
)
def test_a_threshold_costs_the_forwards_to_its_stop_and_the_tokens_below_it(
    threshold, asked, tokens, forwards
):  # fmt: skip
    """Counted by hand for either round. The deepest level is not tested, and levels that were drafted ahead are paid for."""
    assert calibration(SURE, DOUBTFUL).brings(threshold, **{"depth": 4, **asked}) == (sum(tokens) / 2, sum(forwards) / 2)


COST = np.array([1.0 + 0.02 * count for count in range(30)])
ROUNDS = [((-0.1, -0.3, -0.9, -1.6), 4), ((-0.2, -0.7, -1.4, -2.6), 2), ((-0.6, -1.2, -2.1, -3.5), 0)]


@pytest.mark.parametrize("forward", [0.0, 0.03, 0.1, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("asked", [{}, {"nodes": 2}, {"depth": 3}, {"levels": (2,)}, {"ahead": 3}])
def test_the_threshold_is_the_one_that_pays_where_it_runs(forward, asked):
    made, asked = calibration(*ROUNDS), {"depth": 4, **asked}

    def rate(threshold):
        tokens, forwards = made.brings(threshold, **asked)
        return tokens / (COST[asked.get("nodes") or 10] + forwards * forward)

    found = made.threshold_that_pays(SpeedupPolicy(COST, forward), **asked)
    best = max(map(rate, CANDIDATES))
    assert rate(found) == pytest.approx(best)
    assert all(rate(higher) < best for higher in CANDIDATES if higher > found), "the highest of equals"
    assert made.threshold_that_pays(SpeedupPolicy(3 * COST, 3 * forward), **asked) == found, "whatever the unit"


def test_stopping_early_keeps_what_was_found():
    drafter = Fancy(1)
    draft = Dynamic(6, 3, 8, BeamMass(0.0, (2,))).build(drafter, context())
    candidates = searched(Fancy(1), 2, 3)
    best = sorted(candidates, key=lambda path: -candidates[path])[:8]
    assert sorted(paths(draft)[1:]) == sorted(best)
    assert all(len(path) <= 2 for path in paths(draft))
