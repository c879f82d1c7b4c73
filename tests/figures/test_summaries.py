"""Accepted lengths, acceptance by depth and time shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specviz import figures
from specviz.figures.acceptance_by_depth import judged_at_depth
from specviz.palette import THEMES
from specviz.trace import metrics
from tests.support.traces.made import SILENT, TREE, trace
from tests.support.traces.samples import METHODS, sample_trace


def test_accepted_length_counts_steps_and_draws_zero_hollow() -> None:
    figure = figures.accepted_length(trace(TREE, TREE, SILENT))
    bars = figure.data[0]
    assert list(bars.y) == [1, 0, 2]
    assert bars.marker.color[0] == THEMES["light"].paper != bars.marker.color[2]
    assert "τ = 2.33" in figure.layout.title.subtitle.text


def test_accepted_length_says_which_steps_tau_leaves_out() -> None:
    cut = replace(TREE, emitted=(2,), pieces=(" sky",), cut="eos")
    subtitle = figures.accepted_length(trace(TREE, cut)).layout.title.subtitle.text
    assert "τ = 3.00" in subtitle and "1 step cut short left out" in subtitle


@pytest.mark.parametrize("method", METHODS)
def test_acceptance_by_depth_counts_the_steps_that_were_judged_there(method: str) -> None:
    one = sample_trace(20, method=method)
    shares, judged = metrics.accepted_by_depth(one.steps), judged_at_depth(one.steps)
    assert len(shares) == len(judged)
    for share, count in zip(shares, judged, strict=True):
        assert share * count == pytest.approx(round(share * count)), "a share of that many steps is a whole number of them"


def test_shares_of_few_steps_are_hollow() -> None:
    many = figures.acceptance_by_depth(trace(*[TREE] * 6)).data[0]
    few = figures.acceptance_by_depth(trace(TREE, TREE)).data[0]
    assert set(many.marker.color) == {THEMES["light"].accepted}
    assert set(few.marker.color) == {THEMES["light"].paper}
    assert list(many.text) == ["100 %", "100 %"]


def test_time_shares_print_share_and_mean() -> None:
    bars = figures.time_shares(trace(TREE, TREE)).data[0]
    assert list(bars.y) == ["draft", "verify", "judge", "commit", "host"]
    assert bars.text[0] == "16 % · 10.0 ms" and bars.text[1] == "78 % · 50.0 ms"


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["accepted_length", "acceptance_by_depth", "time_shares", "speed_explained"])
def test_a_run_without_steps_is_drawn_empty(name: str) -> None:
    for begun in (trace(ended=False), trace(plain_ms=40), trace(plain_ms=None)):
        assert getattr(figures, name)(begun).layout.title.text
