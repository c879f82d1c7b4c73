"""The eagle suite's arithmetic: what a reader takes from its rows follows from the samples, and gaps are told."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from specviz.bench.kit import paired_runs as gather
from specviz.bench.kit.measure import TimedRun
from specviz.bench.kit.paired_runs import Arm, Sample, Samples, repetition, sample_of
from specviz.bench.kit.report import Report
from specviz.bench.suites import eagle
from specviz.errors import ModelUnavailable
from specviz.trace.schema import Nanoseconds, Node, Step


def sample(kind: str = "chat", lengths: Sequence[int] = (2, 0, 1), gain: float = 1.5, forwards: int = 9) -> Sample:
    emitted = sum(lengths) + len(lengths)
    offered = (8,) * len(lengths)
    return Sample(kind, gain, True, tuple(lengths), emitted, len(lengths), forwards, 30, 0.1, offered)


def samples(**by_arm: Sequence[Sample]) -> Samples:
    return Samples({label.replace("_", " "): list(rows) for label, rows in by_arm.items()})


def test_every_kind_weighs_the_same() -> None:
    found = samples(a=[sample("chat", [0]), sample("chat", [2]), sample("code", [5])])
    assert found.mean("a", lambda one: one.tau) == pytest.approx((2 + 6) / 2)
    assert found.mean("missing", lambda one: one.tau) is None


def test_acceptance_by_depth_is_conditional_on_getting_there() -> None:
    found = samples(chains=[sample(lengths=[0, 1, 1, 3]), sample(lengths=[3, 2, 0, 0])])
    assert found.by_depth("chains") == pytest.approx([5 / 8, 3 / 5, 2 / 3, 0])
    whole = [dataclasses.replace(sample(lengths=[1, 3]), offered=(2, 3))]
    assert samples(chains=whole).by_depth("chains") == [1, 0.5, 1], "nothing was offered below the third node"
    assert samples(chains=whole).reaching("chains") == [2, 2, 1]
    assert found.reaching("chains") == [8, 5, 3, 2]


def test_a_text_that_loops_is_noticed() -> None:
    assert repetition([1, 2, 3, 4, 5, 6]) == 0
    assert repetition([7, 8] * 8) == pytest.approx(1 - 2 / 13)
    assert repetition([1, 2]) == 0


def step(index: int, path: int, cut: str | None = None, forwards: int = 3) -> Step:
    nodes = tuple(Node(place - 1, place, "x") for place in range(path + 1))
    emitted = tuple(range(path + 1))
    return Step(
        index, 10, nodes, tuple(range(1, path + 1)), None, emitted, ("x",) * len(emitted), "greedy",
        Nanoseconds(1), cut, forwards, 12,
    )  # fmt: skip


def test_a_sample_leaves_out_what_the_budget_cut() -> None:
    timed = TimedRun(2.0, (step(0, 3), step(1, 1), step(2, 4, "budget")), tuple(range(11)))
    found = sample_of("code", timed, own=1.0, alone=range(11))
    assert (found.lengths, found.emitted, found.forwards, found.steps) == ((3, 1), 6, 6, 2)
    assert found.tau == 3.0
    assert found.gain == pytest.approx(1.0 / (2.0 / 11))
    assert found.same and not sample_of("code", timed, 1.0, range(10)).same


class Bench:
    """Runs nothing: the target takes a second a token, an arm the time it is told."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def prepared(self, method: str, prompt: str, temperature: float = 0.0, **more: Any) -> SimpleNamespace:
        if method == "eagle3":
            raise ModelUnavailable("eagle3 has no weights here.")
        target = SimpleNamespace(eos_ids=frozenset())
        return SimpleNamespace(method=method, target=target, loaded=None, compose=lambda: bytes(1000))

    def timed_run(self, ready: SimpleNamespace, composition: object = None) -> TimedRun:
        self.ran.append(ready.method)
        seconds = {"autoregressive": 4.0 + len(self.ran) % 2, "eagle": 2.0}.get(ready.method, 1.0)
        return TimedRun(seconds, (step(0, 1), step(1, 1)), (1, 2, 3, 4))


def test_the_target_runs_before_and_after_every_two_methods() -> None:
    bench, said = Bench(), []
    arms = [Arm("eagle", "eagle"), Arm("eagle2", "eagle2"), Arm("eagle3", "eagle3"), Arm("wide", "falcon")]
    found = gather.gather(bench, arms, {"chat": ["hello"]}, 0.0, said.append)  # type: ignore[arg-type]
    warm_up = 3
    assert bench.ran[warm_up:] == ["autoregressive", "eagle", "eagle2", "autoregressive", "falcon", "autoregressive"]
    assert found.missing == {"eagle3": "eagle3 has no weights here."}
    assert 1000 <= found.held_bytes["eagle"] < 1100
    assert found.of("eagle")[0].gain == pytest.approx(4.5 / 2.0, rel=0.2)
    assert "chat 1 of 1" in said[0] and "τ 2.00" in said[0]


def rows_of(found: Samples, temperature: float = 0.0) -> dict[str, Any]:
    return {row.name: row for row in eagle.rows(found, eagle.arms_at(temperature), temperature)}


def test_the_rows_say_who_beat_whom() -> None:
    better, worse = [sample(lengths=[3, 3])], [sample(lengths=[2, 2])]
    found = Samples({"eagle": worse, "eagle2, 25 nodes": better, "eagle3, 25 nodes": worse})
    made = rows_of(found)
    up = made["τ: a tree that follows confidence over a fixed one, same drafter, T = 0"]
    down = made["τ: EAGLE-3's drafter over EAGLE's, same kind of tree, T = 0"]
    assert (up.value, up.reached) == (pytest.approx(4 / 3), True)
    assert (down.value, down.reached) == (pytest.approx(3 / 4), False)
    assert "more on 1 of 1 prompts" in up.detail


def test_a_method_that_could_not_run_is_told() -> None:
    found = Samples(missing={"eagle3": "eagle3 has no weights here."})
    row = rows_of(found)["eagle3, T = 0"]
    assert (row.value, row.detail) == (None, "eagle3 has no weights here.")


@pytest.mark.parametrize(("gain", "reached"), [(2.1, True), (1.9, False)])
def test_the_goal_is_held_against_the_fastest(gain: float, reached: bool) -> None:
    found = samples(eagle=[sample(gain=1.1)], eagle3=[sample(gain=gain)])
    row = rows_of(found)["the fastest, exact, T = 0"]
    assert (row.value, row.detail, row.reached) == (gain, "eagle3", reached)


def test_a_relaxed_method_is_never_held_against_the_goal() -> None:
    found = samples(eagle3=[sample(gain=1.1)], medusa=[sample(gain=9.0)])
    warm, cold = rows_of(found, 1.0), rows_of(found, 0.0)
    assert (warm["the fastest, exact, T = 1"].detail, warm["the fastest, exact, T = 1"].reached) == ("eagle3", False)
    assert (warm["the fastest, relaxed, T = 1"].detail, warm["the fastest, relaxed, T = 1"].goal) == ("medusa", None)
    assert cold["the fastest, exact, T = 0"].detail == "medusa", "typical acceptance is greedy matching there"


def test_flat_acceptance_is_told_from_decaying() -> None:
    flat, falling = [7] * 64 + [6] * 6, [1] * 50 + [2] * 20 + [3] * 6 + [6]
    found = Samples({"eagle, chains": [sample(lengths=falling)], "eagle3, chains": [sample(lengths=flat)]})
    row = rows_of(found)["acceptance at depths 2 to 6 ÷ at depth 1, EAGLE-3 over EAGLE"]
    assert row.value > 1 and row.reached
    assert "eagle, chains 1.00 (77) 0.35 (77)" in row.detail


def test_a_drafter_that_never_gets_deep_is_not_called_flat() -> None:
    short, long = sample(lengths=[4] * 9 + [0]), sample(lengths=[6] * 8 + [3, 0])
    found = Samples({"eagle, chains": [long], "eagle3, chains": [short]})
    row = rows_of(found)["acceptance at depths 2 to 6 ÷ at depth 1, EAGLE-3 over EAGLE"]
    assert row.value == pytest.approx((27 / 36) / (42 / 43))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_dynamic_depth_must_save_forwards_without_losing_tokens(temperature: float) -> None:
    fixed = [sample(lengths=[3, 3, 3], forwards=24)]
    saving, losing = [sample(lengths=[3, 3, 3], forwards=15)], [sample(lengths=[2, 2, 3], forwards=15)]
    for ours, kept in ((saving, True), (losing, False)):
        made = rows_of(Samples({eagle.DDD: ours, eagle.FIXED: fixed}), temperature)
        name = f"{eagle.DDD}, T = {temperature:g}"
        assert made[f"{name}: drafter forwards over fixed depth"].value == pytest.approx(15 / 24)
        assert made[f"{name}: drafter forwards over fixed depth"].reached
        assert made[f"{name}: τ over fixed depth"].reached is kept


def test_dynamic_depth_is_set_beside_trees_that_are_always_shallow() -> None:
    shallow = eagle.fixed_depth(3)
    assert shallow.parameters["depth"] == 3 and shallow in eagle.arms_at(0.0) and shallow in eagle.arms_at(1.0)
    made = rows_of(Samples({eagle.DDD: [sample(lengths=[3, 3])], shallow.label: [sample(lengths=[2, 3])]}))
    row = made[f"{eagle.DDD}, T = 0: τ over {shallow.label}"]
    assert row.value == pytest.approx(8 / 7) and row.goal is None


def test_fixed_depth_is_the_dynamic_ones_own_tree() -> None:
    from specviz.methods.registry import get

    own, fixed = get("ddd").parameters(), eagle.fixed_depth()
    assert fixed.method == "eagle3"
    dynamic = [arm for arm in eagle.arms_at(0.0) if arm.label in (eagle.DDD, eagle.PAPERS)]
    assert [arm.parameters["nodes"] for arm in dynamic] == [25, 25]
    assert fixed.parameters == {"depth": own.depth, "width": own.width, "nodes": 25, "rule": "match"}


def test_acceptance_is_told_of_every_trained_drafter_on_every_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(eagle, "Bencher", lambda target: bench)
    monkeypatch.setattr(eagle, "KINDS", {"chat": ["a", "b", "c"], "code": ["d", "e", "f"]})
    report = Report("acceptance", {})
    eagle.acceptance(report, "any", ())
    found = {row.name: row for row in report.rows}
    assert found["eagle: τ at T = 0"].goal == eagle.LENGTHS["eagle"] and found["deer: τ at T = 0"].goal is None
    assert "gto, 25 nodes: τ at T = 0" in found and found["eagle: τ at T = 0"].detail == "chat 2.00, code 2.00"
    assert bench.ran.count("owl") == 1 + 6, "a warm-up and six prompts"
    bench.ran.clear()
    eagle.acceptance(Report("acceptance", {}), "any", ("owl",), quick=True)
    assert bench.ran.count("owl") == 1 + 4 and not {"eagle", "deer"} & set(bench.ran)


def test_drafters_are_compared_on_one_tree() -> None:
    arms = {arm.label: arm.parameters for arm in eagle.arms_at(0.0)}
    assert arms["gto, 25 nodes"] == arms["eagle3, 25 nodes"] == arms["eagle2, 25 nodes"] == eagle.TREE


def test_tokens_a_forward_are_compared() -> None:
    found = samples(eagle=[sample(forwards=12)], falcon=[sample(forwards=6)])
    assert rows_of(found)["tokens a drafter forward, falcon over EAGLE, T = 0"].value == pytest.approx(2.0)


def test_falcon_and_the_dynamic_trees_are_held_against_eagles_own_25_nodes() -> None:
    from specviz.engine.tree import shape_from_counts
    from specviz.methods.eagle import PUBLISHED, Parameters

    assert Parameters().tree == "published" and Arm("eagle", "eagle") in eagle.arms_at(0.0)
    shape = shape_from_counts(PUBLISHED)
    assert eagle.TREE["nodes"] == len(shape.parents) - 1 and eagle.TREE["depth"] == max(shape.depths)


def test_traversal_runs_at_both_temperatures() -> None:
    for temperature in (0.0, 1.0):
        assert "traversal" in [arm.label for arm in eagle.arms_at(temperature)]


def test_every_arm_is_a_method_with_parameters_it_has() -> None:
    from specviz.methods.parameters import build
    from specviz.methods.registry import get

    for temperature in (0.0, 1.0):
        for arm in eagle.arms_at(temperature):
            build(get(arm.method).parameters, arm.parameters, arm.method)
        labels = [arm.label for arm in eagle.arms_at(temperature)]
        assert len(set(labels)) == len(labels)


def test_a_comparison_that_cannot_run_leaves_the_others_standing() -> None:
    def broken(*given: object) -> None:
        raise ModelUnavailable("the weights are missing.")

    report = Report("eagle", {})
    eagle._proof(report, None, {}, "gto", broken)  # type: ignore[arg-type]
    assert (report.rows[0].value, report.rows[0].detail) == (None, "the weights are missing.")


def test_each_drafters_acceptance_length_has_a_goal_and_its_worst_kind_is_told() -> None:
    arms = {arm.label for arm in eagle.arms_at(0.0)}
    assert set(eagle.LENGTHS) <= arms
    made = rows_of(Samples({"eagle3, 25 nodes": [sample("maths", [2]), sample("chat", [0, 1])]}))
    assert made["eagle3, 25 nodes: τ at T = 0"].reached is False
    worst = made["eagle3, 25 nodes: τ of the worst kind"]
    assert (worst.value, worst.detail, worst.reached) == (1.5, "chat", False)


def test_drawn_trees_are_held_against_the_likeliest_tokens_where_tokens_are_drawn() -> None:
    labels = {arm.label: arm for arm in eagle.arms_at(1.0)}
    likeliest = labels["eagle2, 25 nodes, likeliest tokens"]
    assert likeliest.parameters == {**labels["eagle2, 25 nodes"].parameters, "rule": "match"}


def test_the_line_is_timed_on_all_prompts_as_a_visitor_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def gathered(_: object, arms: Sequence[Arm], prompts: dict[str, Sequence[str]], temperature: float, say: object) -> Samples:
        asked.append((temperature, [(arm.label, dict(arm.parameters)) for arm in arms], sum(map(len, prompts.values()))))
        return samples(eagle2=[sample(gain=1.4)], eagle3=[sample(gain=2.1 - temperature)])

    monkeypatch.setattr(eagle, "gather", gathered)
    monkeypatch.setattr(eagle, "Bencher", lambda target: None)
    report = Report("speed", {})
    eagle.speed(report, "tiny", ["eagle2", "eagle3"])
    assert asked == [(at, [("eagle2", {}), ("eagle3", {})], 60) for at in (0.0, 1.0)]
    found = {row.name: row for row in report.rows}
    assert found["the fastest, exact, T = 0"].value == pytest.approx(2.1)
    assert (found["the fastest, exact, T = 1"].value, found["the fastest, exact, T = 1"].detail) == (pytest.approx(1.4), "eagle2")
