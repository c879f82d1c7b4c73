"""The app as a Space starts it: with the package that lends GPUs, with hardware of its own, and what it then says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUB = """
import sys

def GPU(task=None, *, duration=None, size=None):
    assert "torch" not in sys.modules
    print("duration", duration)
    return task if callable(task) else lambda task: task
"""
START = """
import sys, urllib.request, app
found, url, _ = app.demo.launch(**app.options, prevent_thread_lock=True, quiet=True)
print("answers", urllib.request.urlopen(url).status, "spaces" in sys.modules, "torch" in sys.modules)
print("says", app.running.hardware.sentence())
app.demo.close()
"""


def started(stub: Path, **environment: str) -> str:
    """What a start prints. A minute is what a Space should need at most."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPACE", "SPECVIZ_", "GRADIO_", "PORT"))
    }
    path = os.pathsep.join([str(stub), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, "-c", START.replace("found.close()\n", "")], cwd=ROOT, capture_output=True, text=True, timeout=180,
        env={**inherited, "PYTHONPATH": path, **environment}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_a_zero_gpu_space_starts_with_the_entry_that_borrows_and_says_for_how_long(tmp_path: Path) -> None:
    (tmp_path / "spaces.py").write_text(STUB)
    said = started(tmp_path, SPACES_ZERO_GPU="true", SPACE_ID="me/app").splitlines()
    assert "duration 60" in said and "answers 200 True False" in said
    assert "says Each run borrows a GPU for at most 60 s." in said


@pytest.mark.slow
def test_a_space_with_hardware_of_its_own_asks_for_no_such_package(tmp_path: Path) -> None:
    (tmp_path / "spaces.py").write_text("raise ImportError('not asked for')")
    said = started(tmp_path, SPACE_ID="me/app", SPECVIZ_DEVICE="cpu").splitlines()
    assert "answers 200 False False" in said and any(line.startswith("says Runs on ") for line in said)
