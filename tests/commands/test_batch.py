"""``batch``: prompts from a file become traces in a folder; what cannot be is said before any model is loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specviz.__main__ import main
from specviz.trace import store
from tests.samples import sample_trace


def test_every_prompt_becomes_a_row_with_a_seed_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def traces(ready: list[Any], every: int) -> list[Any]:
        asked.append(every)
        return [sample_trace(3) for _ in ready]

    def prepare(request: Any, memory: Any, progress: Any) -> Any:
        asked.append((request.prompt, request.seed, request.method, request.temperature, dict(request.parameters)))
        return request

    monkeypatch.setitem(sys.modules, "specviz.bench.batch", SimpleNamespace(traces=traces))
    monkeypatch.setitem(sys.modules, "specviz.run", SimpleNamespace(prepare=prepare))
    prompts, out = tmp_path / "prompts.txt", tmp_path / "made" / "here"
    prompts.write_text("One.\n\n  Two.\n", encoding="utf-8")
    given = [
        "batch",
        "--prompts",
        str(prompts),
        "--out",
        str(out),
        "--every",
        "3",
        "--seed",
        "5",
        "--temperature",
        "0.5",
    ]
    assert main([*given, "--param", "nodes=12"]) == 0
    assert asked == [("One.", 5, "reader", 0.5, {"nodes": "12"}), ("Two.", 6, "reader", 0.5, {"nodes": "12"}), 3]
    written = sorted(path.name for path in out.iterdir())
    assert written == ["row-1.spectrace.jsonl", "row-2.spectrace.jsonl"]
    assert len(store.read(out / written[0]).steps) == 3
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "passes, τ" in said[0]


@pytest.mark.parametrize(("text", "said"), [("", "holds 0 prompts"), ("x\n" * 9, "holds 9 prompts; give 1 to 8")])
def test_no_prompts_or_too_many_are_refused(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(text, encoding="utf-8")
    assert main(["batch", "--prompts", str(prompts), "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert main(["batch", "--prompts", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert main(["batch", "--prompts", str(prompts), "--out", str(tmp_path), "--param", "colour=red"]) == 2
    assert "no parameter 'colour'" in capsys.readouterr().err
