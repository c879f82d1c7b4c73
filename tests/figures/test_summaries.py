"""Accepted lengths, acceptance by depth and time shares."""

from __future__ import annotations

import pytest

from specviz import figures
from specviz.figures.acceptance_by_depth import judged_at_depth
from specviz.trace import metrics
from tests.support.traces.made import trace
from tests.support.traces.samples import METHODS, sample_trace


@pytest.mark.parametrize("method", METHODS)
def test_acceptance_by_depth_counts_the_steps_that_were_judged_there(method: str) -> None:
    one = sample_trace(20, method=method)
    shares, judged = metrics.accepted_by_depth(one.steps), judged_at_depth(one.steps)
    assert len(shares) == len(judged)
    for share, count in zip(shares, judged, strict=True):
        assert share * count == pytest.approx(round(share * count)), "a share of that many steps is a whole number of them"


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["accepted_length", "acceptance_by_depth", "time_shares", "speed_explained"])
def test_a_run_without_steps_is_drawn_empty(name: str) -> None:
    for begun in (trace(ended=False), trace(plain_ms=40), trace(plain_ms=None)):
        assert getattr(figures, name)(begun).layout.title.text
