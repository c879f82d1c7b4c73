"""What a reader of the benchmark relies on: goals judged the right way round, pairs interleaved, suites that can run."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specviz import prompts
from specviz.bench import kit, lengths, runner, suites
from specviz.bench.calibrate.replay import MatchedRanks, Text, replay_recycling, replay_stand
from specviz.bench.kit import Bencher, Sample, Samples, Variant, held_bytes
from specviz.bench.report import Ratios, Report, Row, paired
from specviz.bench.runner import run_suite
from specviz.bench.suites import COLUMNS, SYSTEMS, Suite, Versus
from specviz.errors import BadInput
from specviz.methods.registry import all_methods, build
from specviz.paths import ASSETS


def test_a_goal_is_reached_from_the_right_side_and_a_missed_one_is_said_in_every_form():
    assert Row("speed-up", 1.6, goal=1.5).reached is True
    assert Row("cost", 4.0, "%", 3.0, at_most=True).reached is False
    assert Row("only told", 1.0).reached is None and Row("not measured", None, goal=1.0).reached is None
    report = Report("quick", {"target": "tiny"})
    report.add(Row("speed-up of it", 1.2, goal=1.5, detail="τ 1.30"))
    assert "NOT reached" in report.as_table() and "NOT reached" in str(report.rows[0]) and "1.20×" in report.as_table()
    assert json.loads(report.as_json())["rows"][0]["reached"] is False


def test_pairs_are_interleaved_swapped_and_have_a_binomial_sign_test():
    calls = []

    def timed(name, seconds):
        calls.append(name)
        return seconds

    ratios = paired(lambda: timed("first", 2.0), lambda: timed("second", 1.0), 3)
    assert ratios.values == (2.0, 2.0, 2.0) and ratios.median == 2.0
    assert calls == ["first", "second", "second", "first", "first", "second"]
    assert Ratios((2.0, 2.0, 0.5)).sign_test == 1.0 == Ratios((1.0,)).sign_test
    assert math.isclose(Ratios((2.0,) * 10 + (0.5,) * 2).sign_test, 2 * (1 + 12 + 66) / 2**12)


def sample(gain, lengths=(1, 2, 0), kind="chat", **more):
    return Sample(kind, gain, True, lengths, sum(lengths) + len(lengths), len(lengths), 9, 12, 0.0, (2,) * len(lengths), **more)


def test_memory_is_counted_once_and_without_the_target():
    model, own = torch.nn.Linear(100, 100, bias=False), torch.zeros(1000)
    ready = SimpleNamespace(loaded=SimpleNamespace(model=model), target=SimpleNamespace(model=model))
    parts = {"own": own, "view": own[10:], "head": model.weight[:5], "store": np.zeros(500), "target": ready.target}
    assert 8000 <= held_bytes(SimpleNamespace(parts=parts, again=parts, call=lambda: own), ready) < 10_000
    packed = torch.zeros(100, 100).to_mkldnn()
    assert 40_000 <= held_bytes([packed, packed], SimpleNamespace(loaded=None, target=None)) < 41_000


EVERY = [*(suite for several in suites.SUITES.values() for suite in several), *lengths.LENGTH.values()]


@pytest.mark.parametrize("suite", EVERY, ids=lambda suite: suite.title)
def test_a_suite_names_parameters_columns_and_arms_that_there_are(suite):
    labels = [variant.label for variant in suite.variants]
    assert len(set(labels)) == len(labels) and set(suite.columns) <= set(COLUMNS)
    for variant in suite.variants:
        build(all_methods()[variant.method].parameters, dict(variant.parameters), variant.method)
    assert all({one.first, one.second} <= set(labels) and one.column in suites.VALUES for one in suite.versus)
    assert all(set(goals) <= set(labels) and column in suites.VALUES for column, goals in suite.goals.items())
    assert set(suite.fastest) <= {f"{one:g}" for one in suite.temperatures}
    if "length" not in suite.title:
        few, many = (suite.prompts(Bencher("none"), quick) for quick in (True, False))
        assert 0 < sum(map(len, few.values())) <= sum(map(len, many.values()))


def test_every_method_is_measured_and_every_system_is_a_method():
    measured = {variant.method for suite in suites.SUITES["all"] for variant in suite.variants}
    ours = {name for name, method in all_methods().items() if method.modality}  # others want heads from elsewhere
    assert measured == ours - {"autoregressive"} and len(set(SYSTEMS)) == 18 and set(SYSTEMS) <= measured


def gathered(*_, **__):
    return Samples({"a": [sample(2.0), sample(2.4)], "b": [sample(1.0, (0, 0)), sample(1.2)]}, {"c": "There is no c here."})


def test_a_suite_reports_arms_comparisons_goals_and_what_could_not_run(monkeypatch):
    monkeypatch.setattr(suites, "gather", gathered)
    variants = (Variant("a", "eagle2"), Variant("b", "eagle"), Variant("c", "gto"))
    suite = Suite(
        "try", lambda bench, quick: {"chat": ("Hello",)}, variants, tuple(COLUMNS), (0.0,), goals={"τ": {"a": 3.0}},
        versus=(Versus("first over second", "a", "b", "speed-up"),), fastest={"0": {"speed-up": 2.0}},
    )  # fmt: skip
    report = Report("try", {})
    suite.run(report, "tiny")
    rows = {row.name: row for row in report.rows}
    assert rows["a, T = 0"].cells["speed-up"] == "2.20×" and rows["a: τ, T = 0"].reached is False
    assert rows["c, T = 0"].value is None and rows["c, T = 0"].detail == "There is no c here."
    assert rows["speed-up: first over second, T = 0"].value == pytest.approx(2.0)
    assert "higher on 2, lower on 0 of 2" in rows["speed-up: first over second, T = 0"].detail
    assert rows["the fastest exact variant: speed-up, T = 0"].detail == "a" and "| a |" in report.as_table()
    only = Report("try", {})
    suite.run(only, "tiny", ("eagle",))
    assert [row.name for row in only.rows if row.cells] == ["b, T = 0"]


@pytest.mark.slow
def test_arms_run_beside_the_target_and_keep_their_memory_where_they_should():
    def tries(bench, quick):
        return dict.fromkeys(("1st", "2nd"), ("one, two, three, one, two, three, one",))

    suite = Suite("memory", tries, (Variant("suffix_decoding", "suffix_decoding"), Variant("stree", "stree")),
                  ("τ", "same text as target"), target="hybrid-small", tokens=24, remember=True)  # fmt: skip
    (samples,) = suite.run(Report("memory", {}), "smollm2-135m-instruct").values()
    first, second = samples.by_kind("suffix_decoding", lambda one: one.tau).values()
    assert second > first and all(one.same for label in samples.by_variant for one in samples.of(label))
    assert samples.held_bytes["stree"] > 1e5


def test_reported_prompts_are_many_different_and_kept_apart():
    assert list(prompts.kinds()) == ["chat", "translation", "summarising", "question answering", "maths", "code"]
    assert all(len(several) >= 10 for several in prompts.kinds().values()) and len(set(prompts.pictures())) == 64
    plain = [" ".join(re.findall(r"[a-z0-9]+", prompt.lower())) for prompt in prompts.reserved()]
    assert len(set(plain)) == len(plain)
    assert not set(prompts.prompts("calibration")) & {one for several in prompts.kinds().values() for one in several}
    learned = {line.partition(",")[0] for line in (ASSETS / "words" / "sprites.txt").read_text("utf-8").splitlines()}
    assert set(prompts.table("sprites").values()) <= learned and len(set(prompts.table("sprites").values())) == 64
    assert not any(name in words for words, name in prompts.table("sprites").items())


def test_a_number_format_is_that_of_all_runs_of_a_suite_and_of_no_other(monkeypatch):
    asked = []
    part = lambda report, target, methods, quick: asked.append(Bencher(target, settings={"seed": 1}).settings)  # noqa: E731
    monkeypatch.setitem(runner.SUITES, "quick", (part,))
    told = run_suite("quick", dtype="float32", report=lambda line: None)
    run_suite("quick", report=lambda line: None)
    assert asked == [{"dtype": "float32", "seed": 1}, {"seed": 1}] and "float32" in told.as_table() and not kit.COMMON


def test_a_report_names_the_targets_that_a_suite_measures(monkeypatch):
    for suite in ("vision", "all", "speed"):
        monkeypatch.setitem(runner.SUITES, suite, ())
    silent = lambda line: None  # noqa: E731
    assert run_suite("vision", report=silent).where["target"] == "scenes-vlm"
    assert run_suite("vision", target="a/model", report=silent).where["target"] == "a/model"
    everything = "smollm2-135m-instruct, hybrid-small, scenes-vlm, emoji-64"
    assert run_suite("all", report=silent).where["target"] == everything
    assert run_suite("speed", report=silent).where["target"] == "smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"name": "slow"}, "no suite 'slow'"),
        ({"name": "quick", "methods": ["magic"]}, "no method 'magic'"),
        ({"name": "quick", "dtype": "float31"}, "no number format 'float31'"),
        ({"name": "load", "dtype": "float32"}, "does not support --dtype"),
        ({"name": "speed", "save": True}, "does not support --save"),
        ({"name": "length", "save": True, "short": True}, "omit --quick"),
    ],
)
def test_what_no_suite_takes_is_refused_before_anything_runs(asked, why):
    with pytest.raises(BadInput, match=why):
        run_suite(**asked)


def test_replay_counts_the_ranks_that_lead_along_the_text():
    # After 1 the target's best are 2, 3; after 2 they are 3, 1; after 3 they are 1, 2: the text follows the first, then
    # the second choice. A row is known only once its token was met.
    after = {1: [2, 3], 2: [1, 3], 3: [1, 2]}
    output = [2, 3, 1, 2, 3, 1]
    text = Text([1], output, [{} for _ in output], [after[token] for token in [1, *output[:-1]]])
    found = list(replay_recycling([text]))
    assert found[:3] == [None, None, None]
    assert found[3] == MatchedRanks((0, 1, 0)) and found[5] == MatchedRanks((0,))


def test_replay_of_a_store_grows_with_the_trajectory():
    sure = [{token: 1.0} for token in [5, 6, 7, 8]]
    text = Text([1, 2, 3, 4], [5, 6, 7, 8], sure, [])
    first, second = list(replay_stand([text])), list(replay_stand([text, text]))[2:]
    assert first == [None, None]
    assert second == [MatchedRanks((0,) * length, evidence=4) for length in (4, 3, 2, 1)]
