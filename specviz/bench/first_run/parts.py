"""Parts of the first run. Each part runs in its own process with a time limit. A failure is recorded, and the next part
starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Part:
    """A part of the first run.

    ``module``: module in this package. ``function``: name of a function there that fills a report. ``seconds``: time limit.
    ``argument``: optional second argument of the function.
    """

    module: str
    function: str
    seconds: float
    argument: str = ""


PARTS: Mapping[str, Part] = {
    "clock": Part("clock", "autoregressive", 60, "1b"),
    "clock_smollm2": Part("clock", "autoregressive", 50, "smollm2"),
    "text": Part("suites", "suite", 140, "text"),
    "fused": Part("suites", "suite", 40, "fused"),
    "clock_8b": Part("clock", "autoregressive", 60, "8b"),
    "image": Part("suites", "suite", 55, "image"),
    "vision": Part("suites", "suite", 40, "vision"),
    "hybrid": Part("suites", "suite", 30, "hybrid"),
    "recording": Part("clock", "recording", 25),
    "tests": Part("suites", "tests", 110),
}
"""Parts in order of importance: the last parts get only the remaining time."""
NOT_BEGUN = {"state": "not begun", "seconds": 0.0, "error": "No time was left for this part.", "rows": []}
Say = Callable[[str], None]
Command = Callable[[str, Path], list[str]]
"""Function of a part's name and its output file; returns the command that runs the part."""
PATIENCE = 4
"""Factor on every time limit in a dry run, since machines without a GPU start slowly."""


def run(
    file: Path, names: Sequence[str], dry: bool, whole: float, say: Say = print, command: Command | None = None,
    limits: Mapping[str, float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run the parts ``names`` and return the record, also written to ``file`` after every part.

    ``whole``: time limit in seconds for all parts together. ``command`` and ``limits`` override the defaults.
    """
    limits = limits or shares(names, dry, whole)
    started, found = time.monotonic(), dict[str, Any]()
    record: dict[str, Any] = {"dry": dry, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), **machine()}
    for name in names:
        limit = min(limits[name], whole - (time.monotonic() - started))
        say(f"== {name}, at most {max(0.0, limit):.0f} s")
        found[name] = run_with_limit(name, command or own_command(dry), limit) if limit > 0 else NOT_BEGUN
        say(f"   {found[name]['state']} after {found[name]['seconds']:.0f} s {found[name]['error']}".rstrip())
        record |= {"seconds": round(time.monotonic() - started, 1), "parts": found}
        file.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return record


def shares(names: Sequence[str], dry: bool, whole: float) -> dict[str, float]:
    """Return the time limit of each part in seconds: scaled up to fill ``whole`` seconds, or by ``PATIENCE`` in a dry run."""
    more = max(1.0, whole / sum(PARTS[name].seconds for name in names))
    return {name: PARTS[name].seconds * (PATIENCE if dry else more) for name in names}


def own_command(dry: bool) -> Command:
    """Return the default :data:`Command`."""
    more = ["--cpu"] if dry else []
    return lambda name, rows: [sys.executable, "-m", "specviz.bench.first_run", "--part", name, "--out", str(rows), *more]


def run_with_limit(name: str, command: Command, seconds: float) -> dict[str, Any]:
    """Run one part, and kill it after ``seconds``. Return its state, elapsed time, error and the rows that it measured."""
    with tempfile.TemporaryDirectory() as folder:
        rows, log = Path(folder) / "rows.json", Path(folder) / "log.txt"
        started, state, error = time.monotonic(), "done", ""
        with log.open("wb") as output:
            child = subprocess.Popen(
                command(name, rows), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                state, error = "timed out", f"The part exceeded the limit of {seconds:.0f} s."
            finally:
                _end(child)
        if state == "done" and child.returncode:
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            state, error = "failed", " / ".join(words[-4:])[-600:] or "The part ended without an error message."
        return {
            "state": state, "seconds": round(time.monotonic() - started, 1), "error": error,
            "rows": json.loads(rows.read_text(encoding="utf-8"))["rows"] if rows.is_file() else [],
        }  # fmt: skip


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a part and all its child processes, such as test workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def machine() -> dict[str, Any]:
    """Return the device, the library versions and the commit."""
    import torch
    import transformers

    device: dict[str, Any] = {"name": f"{platform.machine()} CPU, {os.cpu_count()} cores"}
    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(0)
        device = {
            "name": facts.name, "memory_gb": round(facts.total_memory / 1e9, 1), "count": torch.cuda.device_count(),
            "capability": f"{facts.major}.{facts.minor}", "processors": facts.multi_processor_count,
        }  # fmt: skip
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    versions = {
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda or "none",
        "transformers": transformers.__version__, "commit": commit or "unknown",
    }  # fmt: skip
    return {"device": device, "versions": versions}
