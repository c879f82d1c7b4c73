"""Accepted lengths, acceptance by depth, time shares and the two runs on one clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specviz import views
from specviz.trace import metrics
from specviz.views.acceptance_by_depth import judged_at_depth
from specviz.views.theme import THEMES
from tests.samples import METHODS, sample_trace
from tests.views.made import MS, SILENT, TREE, hovers, trace


def test_accepted_length_counts_steps_and_draws_zero_hollow() -> None:
    figure = views.accepted_length(trace(TREE, TREE, SILENT))
    bars = figure.data[0]
    assert list(bars.y) == [1, 0, 2]
    assert bars.marker.color[0] == THEMES["light"].paper != bars.marker.color[2]
    assert "τ = 2.33" in figure.layout.title.subtitle.text


def test_accepted_length_says_which_steps_tau_leaves_out() -> None:
    cut = replace(TREE, emitted=(2,), pieces=(" sky",), cut="eos")
    subtitle = views.accepted_length(trace(TREE, cut)).layout.title.subtitle.text
    assert "τ = 3.00" in subtitle and "1 step cut short left out" in subtitle


@pytest.mark.parametrize("method", METHODS)
def test_acceptance_by_depth_counts_the_steps_that_were_judged_there(method: str) -> None:
    one = sample_trace(20, method=method)
    shares, judged = metrics.accepted_by_depth(one.steps), judged_at_depth(one.steps)
    assert len(shares) == len(judged)
    for share, count in zip(shares, judged, strict=True):
        assert share * count == pytest.approx(round(share * count)), (
            "a share of that many steps is a whole number of them"
        )


def test_shares_of_few_steps_are_hollow() -> None:
    many = views.acceptance_by_depth(trace(*[TREE] * 6)).data[0]
    few = views.acceptance_by_depth(trace(TREE, TREE)).data[0]
    assert set(many.marker.color) == {THEMES["light"].accepted}
    assert set(few.marker.color) == {THEMES["light"].paper}
    assert list(many.text) == ["100 %", "100 %"]


def test_time_shares_print_share_and_mean() -> None:
    bars = views.time_shares(trace(TREE, TREE)).data[0]
    assert list(bars.y) == ["draft", "verify", "judge", "commit", "host"]
    assert bars.text[0] == "16 % · 10.0 ms" and bars.text[1] == "78 % · 50.0 ms"


def test_lanes_are_as_long_as_the_runs() -> None:
    one = trace(TREE, TREE, plain_ms=40)
    figure = views.latency_lanes(one)
    ours = [bar for bar in figure.data if bar.name in ("draft", "verify", "judge, commit, host")]
    assert sum(sum(bar.x) for bar in ours) == pytest.approx(0.128)
    assert max(base + x for bar in ours for base, x in zip(bar.base, bar.x, strict=True)) == pytest.approx(0.128)
    plain = next(bar for bar in figure.data if bar.name == "one token a pass")
    assert len(plain.x) == 6 and sum(plain.x) == pytest.approx(0.24)
    assert figure.layout.title.subtitle.text == "128 ms against 240 ms one by one: 1.88× faster"


def test_lanes_never_overlap_and_steps_keep_their_height() -> None:
    figure = views.latency_lanes(trace(TREE, SILENT))
    accepted = next(bar for bar in figure.data if bar.name == "accepted token")
    bonus = next(bar for bar in figure.data if bar.name == "bonus token")
    assert list(accepted.y) == [2, 0] and list(bonus.y) == [1, 1]
    assert accepted.x[1] == pytest.approx(accepted.x[0] + accepted.width[0])


def test_a_slower_run_is_not_called_faster() -> None:
    assert (
        "0.47× the speed, so nothing was saved"
        in views.latency_lanes(trace(TREE, plain_ms=10)).layout.title.subtitle.text
    )


def test_without_a_baseline_the_lane_is_missing_and_said_to_be() -> None:
    figure = views.latency_lanes(trace(TREE, plain_ms=None))
    assert "no one-by-one run was recorded" in figure.layout.title.subtitle.text
    assert not any(bar.name == "one token a pass" for bar in figure.data)


def test_thousands_of_steps_stay_a_small_figure_of_the_same_length() -> None:
    one = trace(*[TREE] * 3000)
    figure = views.latency_lanes(one)
    assert len(figure.to_json()) < 300_000
    ours = [bar for bar in figure.data if bar.name in ("draft", "verify", "judge, commit, host")]
    assert sum(sum(bar.x) for bar in ours) == pytest.approx(3000 * 64 * MS / 1e9, rel=1e-3)
    assert "step 1 to 10" in hovers(figure)[0]


@pytest.mark.parametrize(
    "view", ["accepted_length", "acceptance_by_depth", "time_shares", "latency_lanes", "speed_explained"]
)
def test_a_run_without_steps_is_drawn_empty(view: str) -> None:
    for begun in (trace(ended=False), trace(plain_ms=40), trace(plain_ms=None)):
        assert getattr(views, view)(begun).layout.title.text
