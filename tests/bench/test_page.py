"""The page suite reports a visit by its median and says how busy the machine was."""

from __future__ import annotations

from specviz.bench import page
from specviz.bench.report import Report


def test_a_visit_is_told_by_its_median_and_its_weight() -> None:
    report = Report("page", {})
    page.add_visits(report, page.LINES[1], [(2000.0, 5e5), (2500.0, 5e5), (9000.0, 6e5)])
    seen, sent = report.rows
    assert seen.value == 2500 and seen.reached and "2000 to 9000 ms in 3 visits, load" in seen.detail
    assert (sent.value, sent.unit) == (0.5, "MB")
