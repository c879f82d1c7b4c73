"""State of a running app, shared by the tabs, and a description of the hardware."""

from __future__ import annotations

import json
import logging
import math
import statistics
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.models.hub.cache_dir import cache_folder
from specviz.paths import IMPORTED_FROM
from specviz.trace.store import TraceStore
from specviz.ui.access import PageSessions, Presence
from specviz.ui.archive import Archive, Gallery, Result
from specviz.ui.settings import GPU_SECONDS, Settings, most_seconds
from specviz.ui.shared_runs import SharedRuns
from specviz.ui.stream.engine import Stream, borrowed, local, with_servers
from specviz.ui.stream.live import RunQueue, RunStream
from specviz.ui.stream.sse import EventStreams

LOOK_SECONDS = 120
"""Timeout of the hardware check in seconds."""
TIERS = {"graph": "captured graphs", "eager": "eager passes"}
FAILED = "PyTorch cannot be started on this machine, so only recorded runs are available. See the app's log for the reason."

Detect = Callable[[str], Mapping[str, Any]]


def detect(device: str) -> Mapping[str, Any]:
    """Return the result of :func:`specviz.models.device.describe`, run in a subprocess.

    Raises OSError if the subprocess fails, ValueError for invalid output, and TimeoutExpired.
    """
    command = [sys.executable, "-m", "specviz.models.device", device]
    asked = subprocess.run(command, cwd=IMPORTED_FROM, capture_output=True, text=True, timeout=LOOK_SECONDS, check=False)
    if asked.returncode:
        raise OSError(asked.stderr.strip()[-2000:])
    facts: Mapping[str, Any] = json.loads(asked.stdout.strip().splitlines()[-1])
    return facts


def sentence(facts: Mapping[str, Any]) -> str:
    """Describe the hardware. A GPU that PyTorch cannot use is mentioned."""
    tier = TIERS[facts["tier"]]
    if facts["kind"] == "cuda":
        more = f", one of {facts['count']} GPUs" if facts["count"] > 1 else ""
        return f"Runs on {facts['name']}: {facts['memory_gb']:.0f} GB, {facts['dtype']}, {tier}{more}."
    cores = f"{facts['cores']} core{'' if facts['cores'] == 1 else 's'}"
    idle = " The installed PyTorch cannot use the GPU: install a CUDA build." if facts["unused_gpu"] else ""
    return f"Runs on {facts['name']}: {cores}, {facts['dtype']}, {tier}.{idle}"


class Hardware:
    """Description of the hardware, detected on first use. On a ZeroGPU Space, nothing is detected. ``took``: seconds of recent
    runs, whose median is added."""

    def __init__(self, settings: Settings, detector: Detect = detect, took: Collection[float] = ()) -> None:
        self._device, self._detect, self._lock = settings.device, detector, threading.Lock()
        self._said = f"Each run borrows a GPU for at most {GPU_SECONDS} s." if settings.zero_gpu else ""
        self._took = took

    def sentence(self) -> str:
        """Return the description of the hardware, detecting it on the first call."""
        with self._lock:
            if not self._said:
                try:
                    self._said = sentence(self._detect(self._device))
                except (OSError, ValueError, subprocess.SubprocessError):
                    logging.getLogger(__name__).exception("the hardware check failed")
                    self._said = FAILED
            recent = f" Recent runs took about {statistics.median(tuple(self._took)):.0f} s." if self._took else ""
            return self._said + recent


@dataclass
class AppState:
    """State of the app. The state of individual visitors is in ``pages`` and ``archive.store``."""

    settings: Settings
    archive: Archive
    live: RunStream
    pages: PageSessions
    presence: Presence
    hardware: Hardware

    async def read(self, names: Iterable[str], job: Callable[[], Result], request: gr.Request) -> Result:
        """Await a ``job`` that reads these runs, on behalf of the sender of ``request``, outside Gradio's threads."""
        return await self.archive.of(names, job, self.presence.address_of(request))

    def expose(self) -> None:
        """Switch a private app to the settings for public access."""
        if self.settings.exposed:
            self.settings = self.settings.exposed
            self.live.seconds = most_seconds(self.settings)


def make(settings: Settings, stream: Stream | None = None, detector: Detect = detect) -> AppState:
    """Build the app's state. ``stream`` and ``detector`` replace the engine and the hardware detection in tests."""
    store, took = TraceStore(), deque[float](maxlen=9)
    engine = with_servers(stream or (borrowed(took) if settings.zero_gpu else local), settings.servers)
    live = RunStream(engine, RunQueue(settings.max_waiting), EventStreams(store), most_seconds(settings), settings.max_preparing)
    presence = Presence(settings.proxied)
    archive = Archive(Gallery(settings.traces), store, shared=SharedRuns(store, cache_folder() / "shared", settings.share_days))
    pages = PageSessions(each=math.ceil((settings.max_waiting + 1) * 2 / 3))
    return AppState(settings, archive, live, pages, presence, Hardware(settings, detector, took))
