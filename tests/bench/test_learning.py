"""The learning suite: what a training told of itself, in rows, columns and a drawing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specviz.bench import learning
from specviz.bench.report import Report
from specviz.drafters.networks.weights import write_weights
from specviz.figures.learning_curves import Milestone, learning_curves

CURVE = [
    {"tokens": 4e5, "distinct": 4e5, "tau": 1.8, "gap": 0.1},
    {"tokens": 1.2e6, "distinct": 1.2e6, "tau": 2.2, "gap": 0.2},
    {"tokens": 3e6, "distinct": 1.5e6, "tau": 2.4, "gap": 0.4},
]
MILESTONES = [Milestone(**one) for one in CURVE]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(learning, "WEIGHTS", tmp_path)
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    cards = {
        "good": {"metrics": json.dumps({"tau": 2.4, "curve": CURVE})},
        "old": {"metrics": json.dumps({"curve": [{k: v for k, v in one.items() if k != "tokens"} for one in CURVE + CURVE[2:]]})},
        "words": {"metrics": "signal to noise 25"}, "none": {},
    }  # fmt: skip
    for name, card in cards.items():
        write_weights(tmp_path / f"{name}.safetensors", {"weight": torch.zeros(2, 2)}, card)
    return tmp_path


def test_a_row_a_drafter_whose_card_tells_of_its_training(weights: Path) -> None:
    said: list[str] = []
    report = Report("learning", {}, say=said.append)
    learning.run(report, "", ())
    assert [row.name for row in report.rows] == ["good", "old"]
    cells = report.rows[0].cells
    assert (cells["0.5 M"], cells["1 M"], cells["2 M"], cells["0.25 M"]) == ("1.85", "2.10", "–", "–")
    assert (cells["passes"], cells["τ at the end"], cells["gap"]) == ("2.0", "2.40", "0.40")
    assert (weights / "cache" / "bench" / "learning-curves.html").is_file() and "learning-curves.html" in said[-1]


def test_a_card_that_counts_distinct_tokens_alone_places_its_first_pass_and_keeps_its_end(weights: Path) -> None:
    found = learning.curve_of(weights / "old.safetensors")
    assert [one.tokens for one in found] == [4e5, 1.2e6, 1.5e6, None]
    cells = learning.row("old", found).cells
    assert (cells["passes"], cells["τ at the end"]) == ("–", "2.40")
    assert learning_curves({"old": found}).data[0].x == (0.4, 1.2, 1.5)


def test_later_passes_are_told_apart_in_the_drawing() -> None:
    line = learning_curves({"a<b>": MILESTONES}).data[0]
    assert line.x == (0.4, 1.2, 3.0) and line.y == (1.8, 2.2, 2.4)
    assert line.marker.symbol == ("circle", "circle", "circle-open")
    assert "<b>" not in line.hovertext[0] and "1.50 million distinct" in line.hovertext[2]


def test_a_training_from_a_fresh_network_has_its_drafters_look_but_dashed() -> None:
    names = ["one", "two", "two, from fresh", "three, from fresh"]
    own, other, fresh, alone = learning_curves(dict.fromkeys(names, MILESTONES)).data
    assert fresh.line.color == other.line.color != own.line.color and fresh.marker.symbol == other.marker.symbol
    assert (other.line.dash, fresh.line.dash) == ("solid", "dash")
    assert alone.line.color not in (own.line.color, other.line.color)


def test_trainings_from_a_fresh_network_have_rows_of_their_own(weights: Path) -> None:
    (weights / learning.FRESH).write_text(json.dumps({"good": CURVE[:2]}))
    report = Report("learning", {}, say=lambda line: None)
    learning.run(report, "", ())
    assert [row.name for row in report.rows] == ["good", "old", "good, from fresh"]
    assert report.rows[-1].cells["1 M"] == "2.10" and report.rows[-1].cells["passes"] == "1.0"


def test_what_is_kept_of_fresh_trainings_reaches_eight_million_tokens() -> None:
    kept = learning.fresh_curves()
    assert all(kept[name][-1].distinct >= 8e6 for name in ("eagle", "eagle3", "medusa", "small_draft", "owl"))


def test_text_that_is_read_partly_again_while_more_is_read_counts_by_what_is_distinct() -> None:
    overlapping = [*MILESTONES[:2], Milestone(2.4e6, 2e6, 2.3, 0.2), Milestone(4e6, 2e6, 2.5, 0.2), Milestone(6e6, 4e6, 2.6, 0.2)]
    assert [learning.at(overlapping, million * 1e6) for million in (1, 2, 3, 4, 8)] == ["2.10", "2.30", "2.45", "2.60", "–"]


def test_a_milestone_that_was_asked_for_at_a_mark_counts_though_an_update_late() -> None:
    assert learning.at([Milestone(505_000, 505_000, 1.7, 0.1)], 5e5) == "1.70"
    assert learning.at([Milestone(520_000, 520_000, 1.7, 0.1)], 5e5) == "–"
