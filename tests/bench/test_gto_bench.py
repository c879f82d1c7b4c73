"""GTO's comparison: three drafters, the same places, and a missing one is told, not hidden."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specviz.bench.kit.measure import TimedRun
from specviz.bench.kit.report import Report
from specviz.bench.suites import gto
from specviz.drafters.feature_stepper import FeatureStepper
from specviz.engine.sampling import Warp
from specviz.errors import ModelUnavailable
from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from tests.support.tiny.text import decode, parts_for, tiny_target
from tests.support.worlds.feature import tiny_net

TARGET = tiny_target()


class TinyBench:
    """Runs the method on the tiny target; a prompt is a word whose letters are tokens."""

    def __init__(self, lacking: str = "") -> None:
        self._lacking = lacking

    def heads(self, kind: str) -> FeatureStepper:
        if kind == self._lacking:
            raise ModelUnavailable(f"no {kind} here")
        return FeatureStepper(tiny_net(TARGET.model, True, 40, seed={"gto": 4, "eagle3": 3}[kind]))

    def prepared(self, method: str, prompt: str, temperature: float, parameters: dict[str, Any]) -> Any:
        card = all_methods()[method]
        parts = parts_for(TARGET, Warp(temperature)).using(drafter_weights=self.heads)
        return SimpleNamespace(
            parts=parts, loaded=None, target=TARGET, prompt=prompt, card=card, values=build(card.parameters, parameters, method)
        )

    def timed_run(self, ready: Any, record: str) -> TimedRun:
        composed = ready.card.compose(ready.values, ready.parts)
        ids = [ord(letter) - 97 for letter in ready.prompt]
        run = decode(TARGET, composed, ids, 30, ready.parts.warp, 1, record)
        return TimedRun(1.0, tuple(run.steps), tuple(run.ids))


def reported(bench: TinyBench, temperature: float = 0.0) -> dict[str, Any]:
    report = Report("test", {})
    gto.compare(report, bench, {"chat": ["hello", "there"], "code": ["again"]}, temperature)  # type: ignore[arg-type]
    return {row.name: row for row in report.rows}


@pytest.fixture(name="control")
def control_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A control that is the start itself."""
    (tmp_path / "control").touch()
    monkeypatch.setattr(gto, "control_file", lambda: tmp_path / "control")
    monkeypatch.setattr(gto, "load_heads", lambda *asked: None)
    monkeypatch.setattr(gto, "load_changed", lambda *asked: tiny_net(TARGET.model, True, 40, seed=3))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.usefixtures("control")
def test_a_control_that_is_the_start_compares_as_the_start_does(temperature: float) -> None:
    rows = reported(TinyBench(), temperature)
    start, control = ([row for name, row in rows.items() if said in name] for said in gto.NAMES.values())
    assert len(start) == len(control) == 2
    for one, other in zip(start, control, strict=True):
        assert one.value == pytest.approx(other.value)
        assert one.value != pytest.approx(1.0), "two random drafters are not equally good"
        assert "of 3 prompts" in one.detail


@pytest.mark.slow
def test_what_is_not_at_hand_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gto, "control_file", lambda: tmp_path / "none")
    rows = reported(TinyBench())
    missing = [row for row in rows.values() if row.value is None]
    assert len(missing) == 1 and "train gto" in missing[0].detail
    assert len(rows) == 3
    assert all("no gto here" in row.detail for row in reported(TinyBench("gto")).values())
