"""Falcon's comparison: trees of one size, a forward counted as one, and a missing control told, not hidden."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specviz.bench.kit.measure import TimedRun
from specviz.bench.kit.report import Report
from specviz.bench.suites import falcon
from specviz.bench.suites.falcon import Arm
from specviz.drafters.feature_stepper import FeatureStepper
from specviz.engine.sampling import Warp
from specviz.errors import ModelUnavailable
from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from tests.support.tiny.blocks import block_net
from tests.support.tiny.text import decode, parts_for, tiny_target
from tests.support.worlds.feature import tiny_net

TARGET = tiny_target()
PROMPTS = {"chat": ["hello", "there"], "code": ["again"]}


class TinyBench:
    """Runs the methods on the tiny target; a prompt is a word whose letters are tokens."""

    def __init__(self, lacking: str = "") -> None:
        self._lacking = lacking

    def heads(self, kind: str) -> Any:
        if kind == self._lacking:
            raise ModelUnavailable(f"no {kind} here")
        return block_net(TARGET) if kind == "falcon" else FeatureStepper(tiny_net(TARGET.model, False, 40, seed=3))

    def prepared(self, method: str, prompt: str, temperature: float, parameters: dict[str, Any]) -> Any:
        card = all_methods()[method]
        parts = parts_for(TARGET, Warp(temperature)).using(drafter_weights=self.heads)
        values = build(card.parameters, parameters, method)
        return SimpleNamespace(parts=parts, target=TARGET, prompt=prompt, card=card, values=values)

    def timed_run(self, ready: Any) -> TimedRun:
        ids = [ord(letter) - 97 for letter in ready.prompt]
        composed = ready.card.compose(ready.values, ready.parts)
        run = decode(TARGET, composed, ids, 30, ready.parts.warp, 1, "off")
        assert all(step.verified <= falcon.NODES for step in run.steps)
        return TimedRun(1.0, tuple(run.steps), tuple(run.ids))


def reported(bench: TinyBench, temperature: float = 0.0) -> dict[str, Any]:
    report = Report("test", {})
    falcon.compare(report, bench, PROMPTS, temperature)  # type: ignore[arg-type]
    return {row.name: row for row in report.rows}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_control_that_is_the_same_network_compares_as_equal(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(falcon, "load_plain", lambda target: block_net(target))
    rows = reported(TinyBench(), temperature)
    glancing = [row for name, row in rows.items() if "glancing" in name]
    assert len(glancing) == 5 and all(row.value in (1.0, None) for row in glancing)
    assert "more on 0, less on 0 of 3 prompts" in glancing[0].detail


@pytest.mark.slow
def test_another_control_compares_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(falcon, "load_plain", lambda target: block_net(target, seed=9))
    assert any(row.value not in (1.0, None) for name, row in reported(TinyBench()).items() if "glancing" in name)


def test_half_as_many_forwards_for_as_many_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(falcon, "load_plain", lambda target: block_net(target))
    found, missing = falcon.run_drafters(TinyBench(), ["hello"])  # type: ignore[arg-type]
    assert not missing
    assert all(arm.forwards > 0 and arm.emitted > 0 for arm in found.values())
    steps = {name: len(arm.lengths) for name, arm in found.items()}
    assert found["eagle2"].forwards == 4 * steps["eagle2"]
    assert found["falcon"].forwards == 2 * steps["falcon"]


@pytest.mark.slow
def test_what_is_not_at_hand_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(target: object) -> None:
        raise ModelUnavailable("make it with train falcon_plain")

    monkeypatch.setattr(falcon, "load_plain", none)
    rows = reported(TinyBench())
    missing = [row for row in rows.values() if row.value is None and "beside" in row.name]
    assert len(missing) == 1 and "train falcon_plain" in missing[0].detail
    assert all("no falcon here" in row.detail for row in reported(TinyBench("falcon")).values())
    assert len(reported(TinyBench("falcon"))) == 2


def test_an_arm_counts_steps_that_were_not_cut() -> None:
    arm = Arm()
    whole = SimpleNamespace(cut=None, path=(1, 2), emitted=(5, 6, 7), draft_calls=2)
    none = SimpleNamespace(cut=None, path=(), emitted=(5,), draft_calls=2)
    cut = SimpleNamespace(cut="budget", path=(1, 2, 3), emitted=(5,), draft_calls=2)
    arm.add(SimpleNamespace(steps=[whole, none, cut], tau=2.0))  # type: ignore[arg-type]
    assert (arm.emitted, arm.forwards, arm.tokens_per_forward) == (4, 4, 1.0)
    assert [arm.acceptance_at(depth) for depth in (1, 2, 3)] == [0.5, 1.0, 0.0]
