"""What watching costs: the app in a process of its own, a client that follows its stream, and the same runs without it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradio_client import Client

from specviz.bench.measure import Bencher, paired, spread
from specviz.bench.prompts import QUESTION
from specviz.bench.report import Report, Row
from specviz.errors import SpecvizError

APP = Path(__file__).resolve().parents[2] / "app.py"
PATIENCE = 120.0


@contextmanager
def served() -> Iterator[str]:
    """The app on a free port of this machine; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {**os.environ, "PORT": port, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, str(APP)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield _address(process)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    started = time.monotonic()
    said = []
    for line in process.stdout:
        said.append(line)
        found = re.search(r"http://[\w.:-]+", line)
        if found:
            return found.group()
        if time.monotonic() - started > PATIENCE:
            break
    raise SpecvizError("The app did not start: " + "".join(said)[-300:].strip())


def live_view(report: Report, bench: Bencher) -> None:
    """Updates a second while a run is followed, and tokens a second followed against not followed."""
    rates: list[float] = []
    ready = bench.prepared("prompt_lookup", QUESTION[0])
    with served() as address:
        client = Client(address, verbose=False)

        def followed() -> float:
            times, last = [], ""
            job = client.submit("prompt_lookup", QUESTION[0], bench.tokens, api_name="/run")
            for text in job:
                times.append(time.perf_counter())
                last = text
            end = json.loads(last.splitlines()[-1])
            rates.append((len(times) - 1) / (times[-1] - times[0]))
            return float(end["metrics"]["tokens_per_second"])

        def alone() -> float:
            timed = bench.once(ready, record="tree")
            return len(timed.ids) / timed.seconds

        followed(), alone()
        median, ratios = paired(followed, alone, 7)
    rates = sorted(rates[1:])
    middle = rates[len(rates) // 2]
    report.add(Row("live view, updates", middle, "/s", 10.0, detail="median of the runs that were followed"))
    cost = 100 * (1 / median - 1)
    report.add(
        Row(
            "live view costs",
            cost,
            "%",
            3.0,
            at_most=True,
            detail=f"tokens a second, followed ÷ alone {spread(ratios)}",
        )
    )
