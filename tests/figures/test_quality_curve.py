"""Quality against speed: every setting is a point in both drawings, and what nothing scored is drawn below alone."""

from __future__ import annotations

import pytest

from specviz.figures.quality_curve import Point, quality_curve

POINTS = [
    Point("autoregressive", "autoregressive", 1.0, 0.4, 0.0),
    Point("mulo_sd", "mulo_sd tau=0.1", 1.8, 0.31, 0.62),
    Point("lantern", "lantern <b>", 0.9, 0.38, 0.2),
    Point("mulo_sd", "mulo_sd tau=0.2", 1.5, 0.35, 0.5),
]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_point_a_setting_in_both_drawings(theme: str) -> None:
    lines = [(line.name, line.yaxis, line.x, line.y) for line in quality_curve(POINTS, theme).data]
    assert lines[2] == ("mulo_sd", "y", (1.8, 1.5), (0.31, 0.35))
    assert lines[3] == ("mulo_sd", "y2", (1.8, 1.5), (0.62, 0.5))
    assert len(lines) == 6 and sum(len(line[2]) for line in lines) == 2 * len(POINTS)


def test_methods_differ_in_shape_as_well_as_colour() -> None:
    marks = {(line.marker.symbol, line.marker.color) for line in quality_curve(POINTS).data}
    assert len(marks) == len({shape for shape, _ in marks}) == 3


def test_without_scores_the_distance_is_still_drawn() -> None:
    made = quality_curve([point._replace(score=None) for point in POINTS])
    assert sum(len(line.x) for line in made.data if line.yaxis == "y") == 0
    assert sum(len(line.x) for line in made.data if line.yaxis == "y2") == len(POINTS)
    assert "score" not in made.data[1].hovertext[0]


def test_a_label_is_text() -> None:
    assert not any("<b>" in said for line in quality_curve(POINTS).data for said in line.hovertext)
