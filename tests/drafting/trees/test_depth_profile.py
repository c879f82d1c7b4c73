"""The depth that policy: dear forwards make shallow trees, cheap ones deep, by what each depth brought in a calibration."""

import numpy
import pytest

from specviz.drafting.trees.depth_profile import MIN_LEVELS, DepthProfile, fastest_depth
from specviz.drafting.trees.dynamic import SpeedupPolicy
from specviz.engine.cost import CostCurve
from specviz.errors import BadInput
from specviz.methods.registry import TREES

SIZES = (1, 4, 16)
COLD = ((1.4, 1.5, 1.5), (1.6, 1.9, 2.0), (1.65, 2.1, 2.4), (1.65, 2.2, 2.7))
WARM = ((1.2, 1.25, 1.3), (1.21, 1.3, 1.35), (1.21, 1.31, 1.36), (1.21, 1.31, 1.36))
PROFILE = DepthProfile("eagle", "tiny", 6, SIZES, {0.0: COLD, 1.0: WARM}, "a test")
FLAT = CostCurve((1, 200), (10.0, 10.0))
STEEP = CostCurve((1, 2, 17), (10.0, 11.0, 40.0))


@pytest.mark.parametrize("forward", [0.0, 0.05, 0.25, 1.0])
@pytest.mark.parametrize("curve", [FLAT, STEEP])
def test_no_other_depth_and_size_has_more_tokens_for_the_time(curve, forward):
    policy = SpeedupPolicy.on(curve, forward=forward)
    found = fastest_depth(PROFILE, policy, 0.0)
    rates = {
        (depth, size): row[place] / (curve.at(1 + size) + depth * forward * 10.0)
        for depth, row in enumerate(COLD, start=1)
        for place, size in enumerate(SIZES)
        if depth >= MIN_LEVELS
    }
    assert max(rates, key=rates.__getitem__) == (found.levels, found.nodes)
    assert found.gain == pytest.approx(10.0 * max(rates.values()))
    assert found.forward == pytest.approx(forward) and found.tau == COLD[found.levels - 1][SIZES.index(found.nodes)]


def test_a_stated_size_is_the_size_that_is_weighed():
    policy = SpeedupPolicy.on(FLAT, forward=0.05)
    one, between, beyond = (fastest_depth(PROFILE, policy, 0.0, nodes) for nodes in (1, 10, 128))
    assert (one.nodes, between.nodes, beyond.nodes) == (1, 10, 128)
    assert MIN_LEVELS == one.levels < between.levels
    assert between.tau == pytest.approx(2.2 + 0.5 * 0.5)
    assert beyond.tau == 2.7, "nothing is known of more nodes than were measured"


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"drafter": "eagle"}',
        '{"drafter": "e", "target": "t", "width": 6, "sizes": [1, 2], "tau": {"0": [[1.5]]}}',
        '{"drafter": "e", "target": "t", "width": 6, "sizes": [1], "tau": {}}',
    ],
)  # fmt: skip
def test_a_broken_profile_says_how_to_make_one(text, tmp_path):
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(BadInput, match=r"one.json is not a depth profile .*calibrate one"):
        DepthProfile.load(tmp_path / "one.json")
    with pytest.raises(BadInput):
        DepthProfile.load(tmp_path / "missing.json")


@pytest.mark.parametrize(("name", "drafter"), [("eagle2", "eagle"), ("eagle3", "eagle3"), ("gto", "gto")])
def test_those_that_ship_grow_with_depth_and_size_and_fall_with_the_temperature(name, drafter):
    found = DepthProfile.load(TREES / f"{name}.json")
    assert (found.drafter, found.target, set(found.tau)) == (drafter, "smollm2-135m-instruct", {0.0, 1.0})
    for rows in map(numpy.array, found.tau.values()):
        assert (rows >= 1).all() and rows.shape == (8, len(found.sizes))
        # A longer round moves the places where the next ones begin, so more levels or nodes may bring a hair less.
        slack = -0.02 * rows
        assert (numpy.diff(rows, axis=0) > slack[1:]).all() and (numpy.diff(rows, axis=1) > slack[:, 1:]).all()
    assert found.tau[0.0][-1][-1] > found.tau[1.0][-1][-1]
