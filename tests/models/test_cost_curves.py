"""What a pass costs here is told pass by pass, and kept between starts for a week."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specviz.engine import cost
from specviz.engine.cost import FEWEST, REPEATS, WIDTHS, CostCurve
from specviz.models import cost_curves
from specviz.models.cost_curves import measured_curve
from tests.support.tiny.text import tiny_target


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The widths of all passes, each of which took a millisecond a row."""
    made: list[int] = []
    monkeypatch.setattr(cost, "_pass", lambda target, session, width, chains: made.append(width) or float(width))
    return made


@pytest.fixture
def restarted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Forget what this process knows, as a new start of the app does."""

    def restart() -> None:
        monkeypatch.setattr(cost_curves, "_KNOWN", {})

    restart()
    return restart


def target(**changes: Any) -> Any:
    facts = {"name": "tiny", "device": torch.device("cpu"), "dtype": torch.float32, "tier": "eager", "vocab_size": 64}
    plain = tiny_target(context=512)
    return SimpleNamespace(**{**facts, "open": plain.open, "context_length": 512, **changes})


def test_a_curve_is_measured_once_and_kept_for_the_next_start(passes: list[int], restarted: Any, heard: Any) -> None:
    first = measured_curve(target(), heard)
    count, told = len(passes), list(heard.told)
    assert first.widths == WIDTHS and first.milliseconds == tuple(map(float, WIDTHS))
    assert told[0][0] == "Measuring pass 1 of 48, which is kept for a week" and len(told) == count
    assert measured_curve(target(), heard) == first
    restarted()
    assert measured_curve(target(), heard) == first
    assert len(passes) == count and heard.told == told, "nothing is measured again, and nothing is said"


@pytest.mark.parametrize(
    "changes", [{"name": "other"}, {"dtype": torch.bfloat16}, {"tier": "graph"}, {"rows": 2}, {"vocab_size": 65}]
)
def test_another_model_has_a_curve_of_its_own(changes: Any, passes: list[int], restarted: Any, heard: Any) -> None:
    """A guided picture, of two rows, reads every code twice: the curve of one row would foretell it twice as fast as it is."""
    measured_curve(target(), heard)
    count = len(passes)
    restarted()
    measured_curve(target(**changes), heard)
    assert len(passes) == 2 * count


def test_another_number_of_threads_or_version_is_measured_anew(
    passes: list[int], restarted: Any, heard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_curve(target(), heard)
    count = len(passes)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    measured_curve(target(), heard)
    monkeypatch.setattr(cost_curves.transformers, "__version__", "99.0")
    measured_curve(target(), heard)
    assert len(passes) == 3 * count


@pytest.mark.parametrize(("age", "again"), [(0.9, False), (1.1, True), (-1.1, True)])
def test_an_old_curve_is_measured_again_at_the_next_start(
    age: float, again: bool, passes: list[int], restarted: Any, heard: Any, own_cache: Path
) -> None:  # fmt: skip
    """Whatever a clock that was set back says: a file from far in the future is as old."""
    measured_curve(target(), heard)
    count = len(passes)
    (file,) = (own_cache / "costs").iterdir()
    written = time.time() - age * cost_curves.KEPT_SECONDS
    os.utime(file, (written, written))
    measured_curve(target(), heard)
    assert len(passes) == count, "while the app runs it stays as it is"
    restarted()
    measured_curve(target(), heard)
    assert len(passes) == count * (1 + again)
    restarted()
    measured_curve(target(), heard)
    assert len(passes) == count * (1 + again), "what was measured again is kept"


@pytest.mark.parametrize("text", ["", "[]", '{"widths": [1], "milliseconds": [-1.0]}', '{"widths": [2, 1]}'])
def test_a_damaged_file_is_measured_again(text: str, passes: list[int], restarted: Any, heard: Any, own_cache: Path) -> None:
    first = measured_curve(target(), heard)
    count = len(passes)
    (file,) = (own_cache / "costs").iterdir()
    kept = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(text and json.dumps({**kept, **json.loads(text)} if text.startswith("{") else []), encoding="utf-8")
    restarted()
    assert measured_curve(target(), heard) == first and len(passes) == 2 * count


def test_a_folder_that_cannot_be_written_costs_the_next_start_alone(
    passes: list[int], restarted: Any, heard: Any, own_cache: Path
) -> None:
    own_cache.write_text("a file where the folder should be", encoding="utf-8")
    assert measured_curve(target(), heard) == CostCurve(WIDTHS, tuple(map(float, WIDTHS)))


def test_a_curve_for_which_threads_were_taken_away_is_not_kept(
    passes: list[int], restarted: Any, heard: Any, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = iter([4, 2])
    monkeypatch.setattr(torch, "get_num_threads", lambda: next(threads, 2))
    measured_curve(target(), heard)
    assert not (own_cache / "costs").exists()


@pytest.mark.parametrize(("milliseconds", "rounds"), [(1.0, REPEATS), (45.0, 3), (5000.0, FEWEST)])
def test_a_slow_machine_makes_fewer_rounds(milliseconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the two or more that count it takes the lower median: what came between makes a pass slower, never faster."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(cost, "_pass", lambda *_: milliseconds + len(asked))
    curve = cost.measure(target(), told=lambda number, total: asked.append((number, total)))
    assert len(asked) == len(WIDTHS) * (1 + rounds) and asked[-1] == (len(asked), len(asked))
    place = 1 + (rounds - 1) // 2
    assert curve.milliseconds[0] == milliseconds + 1 + place * len(WIDTHS)
