"""``fetch``, ``bench``, ``calibrate`` and ``train``: they hand over what was asked and say what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specviz import prompts
from specviz.__main__ import main


def test_fetch_prints_the_folder_and_tells_progress_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(name: str, progress: Callable[[str, float | None], None]) -> Path:
        for done in (0.1, 0.5, 0.9):
            progress(f"Fetching {name}", done)
        return Path("somewhere") / name

    monkeypatch.setitem(sys.modules, "specviz.models.hub.prepare", SimpleNamespace(prepare=prepare))
    assert main(["fetch", "a-model"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(Path("somewhere/a-model"))
    assert said.err == "Fetching a-model\n", "one line a message outside a terminal"


@pytest.mark.parametrize("as_json", [False, True])
def test_bench_hands_over_its_choices(as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def run_suite(
        name: str, methods: tuple[str, ...], target: str, report: Callable[[str], None], short: bool, save: bool, dtype: str
    ) -> SimpleNamespace:
        asked.extend([name, tuple(methods), target, short, save, dtype])
        report("a row")
        return SimpleNamespace(as_json=lambda: '{"rows": []}', as_table=lambda: "| a table |")

    monkeypatch.setitem(sys.modules, "specviz.bench.runner", SimpleNamespace(run_suite=run_suite))
    given = [
        "bench",
        "--suite",
        "quick",
        "--methods",
        "stand, prompt_lookup",
        "--target",
        "T",
        "--quick",
        "--save",
        "--dtype",
        "float32",
    ]
    assert main([*given, "--json"] if as_json else given) == 0
    assert asked == ["quick", ("stand", "prompt_lookup"), "T", True, True, "float32"]
    said = capsys.readouterr()
    assert said.out == ('{"rows": []}\n' if as_json else "| a table |\n") and said.err == "a row\n"


def test_calibrate_and_train_hand_over_their_choices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import specviz.bench.calibrate

    asked: list[Any] = []
    calibrate = SimpleNamespace(run=lambda name, target, report: asked.append((name, target)) or "trees/stand.json")
    monkeypatch.setattr(specviz.bench.calibrate, "replay", calibrate, raising=False)
    monkeypatch.setitem(sys.modules, "specviz.bench.calibrate.replay", calibrate)
    assert main(["calibrate", "stand", "--target", "T"]) == 0
    assert capsys.readouterr().out == "trees/stand.json\n"
    training = SimpleNamespace(train=lambda *given: asked.append(given))
    monkeypatch.setitem(sys.modules, "specviz.training", training)
    assert main(["train", "small_draft", "--device", "cpu", "--minutes", "1.5", "--resume"]) == 0
    *choices, reserved = asked[1]
    assert asked[0] == ("stand", "T") and choices == ["small_draft", "cpu", 1.5, True, ()]
    reported = set(prompts.reserved())
    assert reported <= set(reserved), "what numbers are reported on must never be training data"
