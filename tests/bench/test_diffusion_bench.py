"""The diffusion suite's arithmetic: every part against the same without it, and what could not run is told."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from specviz.bench import diffusion, runner
from specviz.bench.gather import Sample, Samples
from specviz.bench.measure import Timed
from specviz.bench.report import Report
from specviz.errors import ModelUnavailable
from specviz.methods.parameters import build
from specviz.methods.registry import get


def sample(lengths: Sequence[int], gain: float = 1.0) -> Sample:
    return Sample("chat", gain, True, tuple(lengths), sum(lengths) + len(lengths), len(lengths), len(lengths), 40, 0.1)


def samples(**by_arm: tuple[Sequence[int], float]) -> Samples:
    names = {
        "deer": diffusion.DEER, "before": diffusion.BEFORE, "eagle": diffusion.CHAINS, "spec": "diffuspec",
        "plain": "diffuspec, no search", "fixed": "diffuspec, fixed length", "neither": "diffuspec, neither",
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


def test_search_and_length_are_each_set_against_the_same_without_them() -> None:
    made = rows(samples(spec=([2], 1.3), plain=([1], 1.2), fixed=([3], 1.0), neither=([1], 0.8)))
    assert made["τ: searched path over each place's likeliest token"].value == pytest.approx(3 / 2)
    assert made["τ: the same at a fixed length"].value == pytest.approx(4 / 2)
    assert made["speed: adapting the length over a fixed one"].value == pytest.approx(1.3)
    assert made["speed: the same without search"].value == pytest.approx(1.5)
    assert made["τ: adapting the length over a fixed one"].reached is False
    assert not rows(samples(spec=([2], 1.3))), "nothing to compare with"


def test_every_arm_is_a_method_with_parameters_it_knows() -> None:
    for arm in (*diffusion.ARMS, *diffusion.WARM):
        build(get(arm.method).parameters, arm.parameters, arm.method)
    assert {"diffusion"} <= set(runner.SUITES) & set(runner.SHORT)


class Bench:
    """Runs nothing: one arm's weights are missing."""

    def __init__(self, target: str) -> None:
        self.target = target

    def prepared(self, method: str, prompt: str, heat: float = 0.0, **more: Any) -> SimpleNamespace:
        if method == "deer" and more.get("parameters", {}).get("aligned", True):
            raise ModelUnavailable("make them with `python -m specviz train deer`")
        target = SimpleNamespace(eos_ids=frozenset())
        return SimpleNamespace(method=method, target=target, loaded=None, compose=list)

    def once(self, ready: SimpleNamespace, composition: object = None) -> Timed:
        return Timed(2.0 if ready.method == "autoregressive" else 1.0, (), (1, 2, 3))


def test_what_is_missing_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusion, "Bencher", Bench)
    report = Report("diffusion", {})
    diffusion.run(report, "tiny", (), quick=True)
    found = {row.name: row for row in report.rows}
    assert found["deer, T = 0"].value is None and "train deer" in found["deer, T = 0"].detail
    assert found["diffuspec, T = 1"].value == pytest.approx(2.0)
    only = Report("diffusion", {})
    diffusion.run(only, "tiny", ("diffuspec",), quick=True)
    assert all("diffuspec" in row.name or "τ" in row.name or "speed" in row.name for row in only.rows)
