"""A model is brought here by another process, whose words reach this one, and this one has computed nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specviz.errors import ModelUnavailable
from specviz.models.hub import in_subprocess
from specviz.models.hub.cache_dir import cache_folder

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_subprocess, "_HERE", set())


@pytest.mark.slow
def test_progress_crosses_and_a_second_request_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    told: list[tuple[str, float | None]] = []
    in_subprocess.load_in_subprocess("hybrid-small-draft", lambda message, share: told.append((message, share)))
    assert told and all(message for message, _ in told) and list((cache_folder() / "models").iterdir())
    told.clear()
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **more: pytest.fail("it is here"))
    in_subprocess.load_in_subprocess("hybrid-small-draft", lambda message, share: told.append((message, share)))
    assert not told


@pytest.mark.slow
def test_why_a_model_cannot_be_had_crosses_too() -> None:
    with pytest.raises(ModelUnavailable, match="There is no model 'no-such-model'"):
        in_subprocess.load_in_subprocess("no-such-model", lambda message, share: None)


@pytest.mark.slow
def test_who_wants_no_more_ends_the_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    started: list[subprocess.Popen[str]] = []
    plain = subprocess.Popen

    def noted(*args: object, **more: object) -> subprocess.Popen[str]:
        started.append(plain(*args, **more))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)

    def stop(message: str, share: float | None) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        in_subprocess.load_in_subprocess("hybrid-small-draft", stop)
    assert started[0].poll() is not None
    in_subprocess.load_in_subprocess("hybrid-small-draft", lambda message, share: None)


@pytest.mark.slow
def test_who_asks_loads_no_torch() -> None:
    script = (
        "import sys; from specviz.models.hub import catalog; from specviz.models.hub.in_subprocess import load_in_subprocess; "
        "load_in_subprocess('hybrid-small-draft', lambda *_: None); "
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True).stdout.strip() == "False"
