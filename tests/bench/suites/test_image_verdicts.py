"""What the image suite concludes from its settings' numbers: only from what was run, and of one setting at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from specviz.bench.kit.report import Row
from specviz.bench.suites.image_settings import DYNAMIC, LANTERN, LANTERN_PP, PLAIN, REJECTED, STATIC, Setting
from specviz.bench.suites.image_verdicts import Result, uncertain, verdicts

ALONE = Result(PLAIN, (1.0, 1.0), 1.0, 1.0, (3.0, 5.0))


def _result(setting: Setting, tau: float = 1.5, faster: float = 1.0, **more: Any) -> Result:
    taus = more.get("taus", (tau - 0.25, tau + 0.25))
    return Result(setting, taus, more.get("fewer", tau), faster, more.get("seconds", (4.0 / faster, 6.0 / faster)))


def _rows(*results: Result) -> Mapping[str, Row]:
    return {row.name: row for row in verdicts(ALONE, results)}


def test_passes_and_time_are_of_the_relaxed_setting_that_is_fastest() -> None:
    exact = _result(STATIC, 9.0, 9.0)
    frugal, quick = _result(LANTERN, 3.0, 1.1), _result(LANTERN_PP, 2.0, 1.6)
    rows = _rows(exact, frugal, quick)
    passes, wall = (rows[f"{one}, fastest relaxed setting"] for one in ("fewer target passes", "less wall time"))
    assert (passes.value, passes.reached, passes.detail) == (2.0, False, quick.setting.label)
    assert (wall.value, wall.reached, wall.detail) == (1.6, True, quick.setting.label)
    assert not any("fastest" in name for name in _rows(exact))


def test_the_order_is_told_in_codes_a_pass_and_in_time() -> None:
    rows = _rows(_result(DYNAMIC, 1.5, 1.0), _result(LANTERN, 1.8, 0.8), _result(LANTERN_PP, 1.8, 1.0))
    assert rows[f"{LANTERN.label} over {DYNAMIC.label}, T = 1: τ"].value == pytest.approx(1.2)
    assert rows[f"{LANTERN.label} over {DYNAMIC.label}, T = 1: τ"].reached
    assert rows[f"{LANTERN.label} over {DYNAMIC.label}, T = 1: wall time"].value == pytest.approx(0.8)
    assert rows[f"{LANTERN.label} over {DYNAMIC.label}, T = 1: wall time"].reached is False
    assert rows[f"{LANTERN_PP.label} over {LANTERN.label}, T = 1: τ"].reached is False, "level is not ahead"
    assert rows[f"{LANTERN_PP.label} over {LANTERN.label}, T = 1: wall time"].value == pytest.approx(1.25)
    assert not any(" over " in name for name in _rows(_result(LANTERN_PP), _result(DYNAMIC)))


def test_time_is_compared_picture_by_picture() -> None:
    rows = _rows(_result(LANTERN, seconds=(1.0, 2.0, 40.0)), _result(DYNAMIC, seconds=(2.0, 3.0, 20.0)))
    assert rows[f"{LANTERN.label} over {DYNAMIC.label}, T = 1: wall time"].value == pytest.approx(1.5)


def test_how_far_two_are_apart_is_told_with_its_standard_error_picture_by_picture() -> None:
    """Means 2 and 1.7; differences 0.2, 0.3, 0.4 have a standard deviation of 0.1 about theirs."""
    ours = _result(LANTERN, taus=(1.0, 2.0, 3.0), seconds=(1.0,) * 3)
    rows = _rows(ours, _result(DYNAMIC, taus=(0.8, 1.7, 2.6), seconds=(1.0,) * 3))
    assert "2.000 and 1.700, +0.300 ± 0.058 apart" in rows[f"{LANTERN.label} over {DYNAMIC.label}, T = 1: τ"].detail
    assert uncertain([0.5]) == "+0.500"


def test_trees_are_compared_under_one_and_the_same_rule() -> None:
    rows = _rows(_result(STATIC, 1.7), _result(DYNAMIC, 1.5), _result(REJECTED[0], 1.4), _result(REJECTED[1], 1.6))
    name = "static over dynamic tree, 25 nodes, both by {}, T = 1: τ"
    assert rows[name.format("sample-and-match")].value == pytest.approx(1.7 / 1.5)
    assert rows[name.format("rejection")].value == pytest.approx(1.4 / 1.6)
    assert rows[name.format("rejection")].reached is False
    assert not any("static" in one for one in _rows(_result(STATIC), _result(REJECTED[1])))


def test_a_looser_bound_never_accepts_less() -> None:
    def at(delta: float, tau: float, **more: Any) -> Result:
        return _result(Setting("lantern", {"delta": delta, **more}), tau)

    rows = _rows(at(0.3, 1.9, nodes=25), at(0.05, 1.5, nodes=25), at(0.1, 1.6, nodes=25), at(0.1, 9.0, nodes=8))
    row = rows["lantern nodes=25: smallest step of τ as delta grows"]
    assert (row.value, row.reached) == (pytest.approx(0.1), True)
    assert row.detail == "+0.100 ± 0.000 in the smallest step; 0.05: τ 1.500, 0.1: τ 1.600, 0.3: τ 1.900"
    assert not any("nodes=8: smallest" in name for name in rows), "one point is no curve"
    fallen = _rows(at(0.1, 1.6), at(0.3, 1.5))["lantern: smallest step of τ as delta grows"]
    assert (fallen.value, fallen.reached) == (pytest.approx(-0.1), False)


def test_factor_is_swept_too() -> None:
    swept = [_result(Setting("lantern_pp", {"factor": factor}), factor) for factor in (2.0, 1.5, 5.0)]
    assert _rows(*swept)["lantern_pp: smallest step of τ as factor grows"].value == pytest.approx(0.5)


def test_the_slowest_picture_is_told_one_by_one_and_of_all() -> None:
    rows = _rows(_result(LANTERN, seconds=(10.0, 61.0)), _result(DYNAMIC, seconds=(40.0, 40.0)))
    plain, slow = rows["seconds a picture, baseline"], rows["seconds a picture, slowest setting"]
    assert (plain.value, plain.reached) == (5.0, True)
    assert (slow.value, slow.reached) == (61.0, False) and LANTERN.label in slow.detail
