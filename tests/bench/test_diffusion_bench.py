"""The diffusion suite's arithmetic: every part against the same without it, and what could not run is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specviz.bench import runner
from specviz.bench.kit.measure import TimedRun
from specviz.bench.kit.paired_runs import Sample, Samples
from specviz.bench.kit.report import Report, Row
from specviz.bench.suites import diffusion
from specviz.drafters.networks.weights import write_weights
from specviz.errors import ModelUnavailable
from specviz.methods.parameters import build
from specviz.methods.registry import get


def sample(lengths: Sequence[int], gain: float = 1.0) -> Sample:
    many, offered = len(lengths), (8,) * len(lengths)
    return Sample("chat", gain, True, tuple(lengths), sum(lengths) + many, many, many, 40, 0.1, offered)


def samples(**by_arm: tuple[Sequence[int], float]) -> Samples:
    names = {
        "deer": diffusion.DEER, "before": diffusion.BEFORE, "eagle": diffusion.CHAINS, "spec": "diffuspec",
        "plain": "diffuspec, no search", "neither": "diffuspec, neither",
        **{f"fixed{length}": label for length, label in diffusion.FIXED.items()},
    }  # fmt: skip
    return Samples({names[key]: [sample(*given)] for key, given in by_arm.items()})


def rows(found: Samples) -> dict[str, Any]:
    return {row.name: row for row in diffusion.proofs(found)}


def test_the_stages_are_weighed_by_the_first_place() -> None:
    made = rows(samples(deer=([1, 1, 0, 7], 1.2), before=([0, 1, 0, 0], 1.0)))
    first = made["acceptance of the first place, after DEER's stages over before"]
    assert first.value == pytest.approx(3.0) and first.reached
    assert made["longest accepted block"].value == 7 and "0: 1, 1: 2, 7: 1" in made["longest accepted block"].detail
    assert made["τ: after DEER's stages over before"].value == pytest.approx((13 / 4) / (5 / 4))


def test_flatness_compares_what_is_left_deeper_down() -> None:
    made = rows(samples(deer=([0, 4, 4, 4], 1.0), eagle=([0, 4, 1, 1], 1.0)))
    (row,) = [row for name, row in made.items() if "depths 2 to 4" in name]
    ours, theirs = (1 + 1 + 1) / 3 / 0.75, (1 / 3 + 1 + 1) / 3 / 0.75
    assert row.value == pytest.approx(ours / theirs)


@pytest.mark.parametrize(("lengths", "curve"), [([0, 1, 2], [2 / 3, 1 / 2, 0]), ([0, 0], [0]), ([8, 8], [1] * 8)])
def test_what_was_offered_and_never_accepted_counts(lengths: list[int], curve: list[float]) -> None:
    assert samples(deer=(lengths, 1.0)).by_depth(diffusion.DEER) == pytest.approx(curve)
    (row,) = [row for name, row in rows(samples(deer=(lengths, 1.0), eagle=([8], 1.0))).items() if "depths 2 to 4" in name]
    kept = sum(curve[1:4]) / 3 / curve[0] if curve[0] else 0
    assert row.value == pytest.approx(kept), "against a chain that loses nothing"


def test_search_and_length_are_each_set_against_the_same_without_them() -> None:
    made = rows(
        samples(spec=([2], 1.3), plain=([1], 1.2), fixed3=([1], 1.4), fixed4=([2], 1.1), fixed6=([3], 1.0), neither=([1], 0.8))
    )
    assert made["τ: searched path over each place's likeliest token"].value == pytest.approx(3 / 2)
    assert made["τ: the same at a fixed length"].value == pytest.approx(4 / 2)
    best = made["speed: adapting the length over the best fixed one"]
    assert best.value == pytest.approx(1.3 / 1.4) and not best.reached and "always 3" in best.detail
    assert made["τ: adapting the length over the best fixed one"].value == pytest.approx(3 / 2)
    assert made["speed: adapting the length over always 6"].value == pytest.approx(1.3)
    assert made["speed: the same without search"].value == pytest.approx(1.5)
    assert not rows(samples(spec=([2], 1.3))), "nothing to compare with"


def test_the_fixed_arms_are_as_long_as_they_say_and_reach_up_to_the_longest() -> None:
    arms = {arm.label: build(get(arm.method).parameters, arm.parameters, arm.method) for arm in diffusion.ARMS}
    fixed = {length: arms[label] for length, label in diffusion.FIXED.items()}
    assert {3, 4, 6} == set(fixed) and all(one.longest == length and not one.adaptive for length, one in fixed.items())
    assert arms["diffuspec"].longest == arms["diffuspec, neither"].longest == diffusion.LONGEST


def card(path: Path, **arms: float) -> Path:
    figures = {name: {"by_place": [share, 0.1], "steps": 1000} for name, share in arms.items()}
    write_weights(path / "deer.safetensors", {"x": torch.zeros(2, 2)}, {"metrics": json.dumps(figures)})
    return path / "deer.safetensors"


def test_the_second_stage_is_weighed_by_the_card_of_what_ships(tmp_path: Path) -> None:
    row = diffusion.second_stage(card(tmp_path, start=0.2, first_stage=0.25, deer=0.3, control=0.26))
    assert row.value == pytest.approx(1.2) and row.reached
    error = 1.2 * ((0.7 / 300) + (0.75 / 250)) ** 0.5
    assert f"0.300 and 0.250, 1.200 ± {error:.3f}" in row.detail and "the control 0.260 and 0.250, 1.040" in row.detail
    assert "1000 places" in row.detail
    lower = diffusion.second_stage(card(tmp_path, first_stage=0.25, deer=0.24))
    assert lower.reached is False and "no control" in lower.detail


def test_a_card_that_does_not_say_is_told(tmp_path: Path) -> None:
    row = diffusion.second_stage(card(tmp_path, start=0.2))
    assert row.value is None and "does not tell" in row.detail
    assert diffusion.second_stage(tmp_path / "nothing.safetensors").value is None


def test_every_arm_is_a_method_with_parameters_it_knows() -> None:
    for arm in (*diffusion.ARMS, *diffusion.WARM):
        build(get(arm.method).parameters, arm.parameters, arm.method)
    assert {"diffusion"} <= set(runner.SUITES) & set(runner.SHORT)


class Bench:
    """Runs nothing: one arm's weights are missing."""

    def __init__(self, target: str) -> None:
        self.target = target

    def prepared(self, method: str, prompt: str, temperature: float = 0.0, **more: Any) -> SimpleNamespace:
        if method == "deer" and more.get("parameters", {}).get("aligned", True):
            raise ModelUnavailable("make them with `python -m specviz train deer`")
        target = SimpleNamespace(eos_ids=frozenset())
        return SimpleNamespace(method=method, target=target, loaded=None, compose=list)

    def timed_run(self, ready: SimpleNamespace, composition: object = None) -> TimedRun:
        return TimedRun(2.0 if ready.method == "autoregressive" else 1.0, (), (1, 2, 3))


def test_what_is_missing_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusion, "Bencher", Bench)
    proof = Row("flatter on synthetic code", 1.1)
    monkeypatch.setattr(diffusion.synthetic_code, "rows", lambda: [proof])
    report = Report("diffusion", {})
    diffusion.run(report, "tiny", (), quick=True)
    found = {row.name: row for row in report.rows}
    assert found["deer, T = 0"].value is None and "train deer" in found["deer, T = 0"].detail
    assert found["diffuspec, T = 1"].value == pytest.approx(2.0)
    assert found[proof.name] is proof
    only = Report("diffusion", {})
    diffusion.run(only, "tiny", ("diffuspec",), quick=True)
    assert all("diffuspec" in row.name or "τ" in row.name or "speed" in row.name for row in only.rows)
