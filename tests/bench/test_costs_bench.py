"""Sizes that follow costs, on a simulated machine that is idle, then busy, then idle, whichever it was timed on first."""

from __future__ import annotations

import pytest

from specviz.bench.costs import GOAL
from specviz.engine.cost import PassTimes
from tests.support.simulated_costs import FLAT, IDLE, STEEP, Machine, simulated


@pytest.mark.parametrize("first", [IDLE, FLAT], ids=["timed idle", "timed busy"])
def test_the_default_keeps_up_with_the_best_fixed_size_busy_or_idle(first: Machine) -> None:
    ratios = [ratio for ratio, _, _ in simulated(0, first, (IDLE, STEEP, IDLE), 8.0)]
    assert min(ratios) > GOAL, ratios


def test_costs_that_do_not_learn_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    learn = PassTimes.learn
    timed: list[int] = []

    def once(times: PassTimes, rows: int, *rest: float) -> None:
        timed.append(rows)
        if len(timed) <= 8:
            learn(times, rows, *rest)

    monkeypatch.setattr(PassTimes, "learn", once)
    assert min(ratio for ratio, _, _ in simulated(0, FLAT, (IDLE, STEEP), 8.0)) < GOAL
