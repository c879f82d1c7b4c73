"""Figures of an inspected drafter say which reading is which, and what the drafter reads."""

import pytest

from specviz.figures.drafter_readings import acceptance_of_readings
from specviz.figures.reliability import binned, calibration_error, of_bins
from specviz.palette import THEMES

RATES = {"as loaded": [0.12, 0.05, None], "with taps one lower": [0.71, 0.6, 0.5]}


@pytest.mark.parametrize("theme", THEMES)
def test_readings_differ_in_shape_and_dash_and_are_named(theme):
    figure = acceptance_of_readings(RATES, 236, theme)
    assert [line.name for line in figure.data] == list(RATES)
    assert len({(line.marker.symbol, line.line.dash) for line in figure.data}) == 2
    assert list(figure.data[0].y) == [0.12, 0.05, None] and "236 positions" in figure.layout.title.subtitle.text
    assert THEMES[theme].ink in figure.to_json()


def test_a_name_cannot_draw_markup():
    assert "<b>" not in acceptance_of_readings({"<b>loud</b>": [1.0]}, 1).to_json()


def test_guesses_are_counted_by_confidence():
    bins = binned([(0.95, True), (0.99, True), (1.0, False), (0.15, False)])
    assert [(round(one.confidence, 2), one.accepted, one.judged) for one in bins] == [(0.15, 0, 1), (0.98, 2, 3)]
    assert calibration_error(bins) == pytest.approx((0.15 + 3 * (0.98 - 2 / 3)) / 4)
    assert len(of_bins(bins).data) >= 3
