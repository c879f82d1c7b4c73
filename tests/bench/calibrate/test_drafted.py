"""Calibration of trained drafters: accepted nodes as rank paths, and a depth that costs next to nothing."""

from __future__ import annotations

import pytest

from specviz.bench.calibrate.drafted import BeamMasses, by_threshold, quantiles, ranks, stop_level
from specviz.errors import BadInput
from specviz.trace.schema import Nanoseconds, Node, Step


def test_an_accepted_path_is_told_by_its_ranks() -> None:
    parents = [-1, 0, 0, 0, 1, 1, 2, 2, 2, 8]
    nodes = tuple(Node(parent, number, "x") for number, parent in enumerate(parents))
    step = Step(0, 5, nodes, (2, 8, 9), None, (2, 8, 9), ("x",) * 3, "greedy", Nanoseconds(1))
    assert ranks(step) == (1, 2, 0)


def test_a_round_stops_at_its_first_light_level() -> None:
    one = BeamMasses((-0.1, -0.6, -0.4, -2.0), 2)
    assert [stop_level(one, threshold) for threshold in (-3.0, -0.5, -0.05)] == [4, 2, 1]
    assert stop_level(BeamMasses((-0.1, -5.0), 0), -1.0) == 2, "nothing is saved at the deepest level"


def test_each_threshold_is_told_with_what_its_rounds_write_and_take() -> None:
    deep, shallow = BeamMasses((-0.1, -0.2, -0.4, -0.6), 4), BeamMasses((-0.9, -1.6, -2.2, -3.0), 1)
    rows = {threshold: told for threshold, *told in by_threshold([deep] * 10 + [shallow] * 10)}
    assert rows[-0.9] == pytest.approx([(5 + 2) / 2, (4 + 2) / 2]), "at -0.9 the shallow one stops at its second level"
    assert rows[-0.4] == pytest.approx([(5 + 2) / 2, (4 + 1) / 2])
    assert rows[-0.2] == pytest.approx([(4 + 2) / 2, (3 + 1) / 2]), "what was accepted below is lost"
    assert rows[0.0] == pytest.approx([2, 1])
    assert list(rows) == sorted(rows) and len({tuple(told) for told in rows.values()}) == len(rows), "of equals the highest alone"
    with pytest.raises(BadInput, match="more tokens"):
        by_threshold([])


def test_quantiles_are_by_level() -> None:
    found = quantiles([BeamMasses((-1.0, -2.0), 0), BeamMasses((-3.0,), 0)])
    assert (found[1][0], found[1][5], found[1][10]) == pytest.approx((-3.0, -2.0, -1.0))
    assert set(found[2]) == {-2.0}
