"""The sentence that says what runs compute on here."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from specviz.paths import IMPORTED_FROM
from specviz.ui.settings import GPU_SECONDS, Settings

LOOK_SECONDS = 120
"""A process that has not loaded torch by then never will."""
TIERS = {"graph": "captured graphs", "eager": "eager passes"}
FAILED = "PyTorch does not start here, so nothing can run live; recorded runs play. The app's log says why."

Look = Callable[[str], Mapping[str, Any]]


def looked(device: str) -> Mapping[str, Any]:
    """What :func:`specviz.models.hardware.found` finds, in a process of its own. Raises OSError or ValueError."""
    command = [sys.executable, "-m", "specviz.models.hardware", device]
    asked = subprocess.run(command, cwd=IMPORTED_FROM, capture_output=True, text=True, timeout=LOOK_SECONDS, check=False)
    if asked.returncode:
        raise OSError(asked.stderr.strip()[-2000:])
    facts: Mapping[str, Any] = json.loads(asked.stdout.strip().splitlines()[-1])
    return facts


def sentence(facts: Mapping[str, Any]) -> str:
    """One sentence of the facts, and one more where a GPU lies idle."""
    tier = TIERS[facts["tier"]]
    if facts["kind"] == "cuda":
        more = f", one of {facts['count']} GPUs" if facts["count"] > 1 else ""
        return f"Runs on {facts['name']}: {facts['memory_gb']:.0f} GB, {facts['dtype']}, {tier}{more}."
    cores = f"{facts['cores']} core{'' if facts['cores'] == 1 else 's'}"
    idle = " A GPU is here that this PyTorch cannot use: install a CUDA build." if facts["unused_gpu"] else ""
    return f"Runs on {facts['name']}: {cores}, {facts['dtype']}, {tier}.{idle}"


class Hardware:
    """What was found, looked for once, when the first page asks. A ZeroGPU Space has none before a run borrows it."""

    def __init__(self, settings: Settings, look: Look = looked) -> None:
        self._device, self._look, self._lock = settings.device, look, threading.Lock()
        self._said = ""
        if settings.zero_gpu:
            self._said = f"Each run borrows a GPU for at most {GPU_SECONDS} s."

    def sentence(self) -> str:
        """What to tell, as soon as it is known."""
        with self._lock:
            if not self._said:
                try:
                    self._said = sentence(self._look(self._device))
                except (OSError, ValueError, subprocess.SubprocessError):
                    logging.getLogger(__name__).exception("the hardware could not be looked at")
                    self._said = FAILED
            return self._said
