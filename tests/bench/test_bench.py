"""What a reader of the benchmark relies on: goals judged the right way round, pairs interleaved, replays that count truly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specviz.bench import runner
from specviz.bench.calibrate.replay import FollowedRanks, Tally, Text, replay_recycling, replay_stand
from specviz.bench.kit.measure import Bencher, median_ratio
from specviz.bench.kit.prompts import CALIBRATION, GROUNDED, KINDS
from specviz.bench.kit.report import Report, Row, line
from specviz.bench.runner import run_suite
from specviz.errors import BadInput


def test_a_goal_is_reached_from_the_right_side() -> None:
    assert Row("speed-up", 1.6, goal=1.5).reached is True
    assert Row("speed-up", 1.4, goal=1.5).reached is False
    assert Row("cost", 2.0, "%", 3.0, at_most=True).reached is True
    assert Row("cost", 4.0, "%", 3.0, at_most=True).reached is False
    assert Row("only told", 1.0).reached is None
    assert Row("could not be measured", None, goal=1.0).reached is None


def test_a_missed_goal_is_said_in_every_form() -> None:
    report = Report("quick", {"target": "tiny"})
    report.add(Row("speed-up of it", 1.2, goal=1.5, detail="τ 1.30"))
    assert "NOT reached" in report.as_table()
    assert "NOT reached" in line(report.rows[0])
    assert json.loads(report.as_json())["rows"][0]["reached"] is False
    assert "1.20×" in report.as_table()


def test_pairs_are_interleaved_and_swapped() -> None:
    calls: list[str] = []

    def first() -> float:
        calls.append("first")
        return 2.0

    def second() -> float:
        calls.append("second")
        return 1.0

    median, ratios = median_ratio(first, second, 3)
    assert (median, ratios) == (2.0, [2.0, 2.0, 2.0])
    assert calls == ["first", "second", "second", "first", "first", "second"]


def test_replay_counts_the_ranks_that_lead_along_the_text() -> None:
    # After 1 the target's best are 2, 3; after 2 they are 3, 1; after 3 they are 1, 2: the text follows the first, then
    # the second choice. A row is known only once its token was met.
    after = {1: [2, 3], 2: [1, 3], 3: [1, 2]}
    output = [2, 3, 1, 2, 3, 1]
    successors = [after[token] for token in [1, *output[:-1]]]
    text = Text([1], output, [{} for _ in output], successors)
    found = list(replay_recycling([text]))
    assert found[:3] == [None, None, None]
    assert found[3] == FollowedRanks((0, 1, 0))
    assert found[5] == FollowedRanks((0,))


def test_replay_of_a_store_grows_with_the_trajectory() -> None:
    sure = [{token: 1.0} for token in [5, 6, 7, 8]]
    text = Text([1, 2, 3, 4], [5, 6, 7, 8], sure, [])
    first, second = list(replay_stand([text])), list(replay_stand([text, text]))[2:]
    assert first == [None, None]
    assert second == [FollowedRanks((0,) * length, evidence=4) for length in (4, 3, 2, 1)]


def test_places_are_counted_apart_by_how_long_a_context_was_known() -> None:
    tally = Tally()
    for path in ((0, 0), (0, 1), (), (1,)):
        tally.add(path)
    tree = tally.tree("a test")
    assert dict(zip(tree.paths, tree.probability, strict=True)) == {(0,): 0.5, (0, 0): 0.25, (0, 1): 0.25, (1,): 0.25}
    assert tree.source == "a test, 4 places"


def test_prompts_of_different_purpose_do_not_overlap() -> None:
    reported = {*GROUNDED, *(prompt for prompts in KINDS.values() for prompt in prompts)}
    assert not reported & set(CALIBRATION)


def test_a_number_format_is_that_of_all_runs_of_a_suite_and_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setitem(
        runner.SUITES, "quick", lambda report, target, methods: asked.append(Bencher(target, settings={"seed": 1}).settings)
    )
    said = run_suite("quick", dtype="float32", report=lambda line: None)
    run_suite("quick", report=lambda line: None)
    assert asked == [{"dtype": "float32", "seed": 1}, {"seed": 1}]
    assert "float32" in said.as_table()
    with pytest.raises(BadInput, match="no number format 'float31'"):
        run_suite("quick", dtype="float31")
    for name in runner.OWN_PROCESSES:
        with pytest.raises(BadInput, match="leave out --dtype"):
            run_suite(name, dtype="float32")


def test_unknown_names_are_refused_before_anything_runs() -> None:
    with pytest.raises(BadInput, match="no suite 'slow'"):
        run_suite("slow")
    with pytest.raises(BadInput, match="no method 'magic'"):
        run_suite("quick", ["magic"])
