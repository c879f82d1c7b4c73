"""The load suite: thirty visitors at once on one engine, half of them leaving midway, and the cost of waiting.

The app runs in a process of its own with its own folder for files; the visitors run in this one and cost it processor time
as well, which browsers on other machines would not.
"""

from __future__ import annotations

import json
import os
import queue
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specviz.bench.kit.report import Report, Row
from specviz.bench.kit.visitor import Form, PressOutcome, Visitor

APP = Path(__file__).resolve().parents[3] / "app.py"
VISITORS, RUNS, QUICK_RUNS = 30, 200, 60
WAITERS, PAIRS = 16, 5
IDLE_SECONDS = 15.0
SETTLING_SECONDS = 5.0
STARTING_SECONDS = 120.0
BACK_SECONDS = 5.0
"""After which a visitor who was refused presses again."""

SHORT = {
    "sp-method": "prompt_lookup",
    "sp-prompt": "Write a short story about a fox who learns to swim.",
    "sp-basics": json.dumps({"of": "basics", "values": {"temperature": 0.0, "max_new_tokens": 32}}),
    "sp-advanced": json.dumps({"of": "advanced", "values": {"baseline": False}}),
    "sp-own": '{"of":"","values":{}}',
}
"""A run that is equally long however many wait."""


PAUSED = """
import os, runpy, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
app = runpy.run_path(sys.argv[1])
def paused(request, memory, cancel, progress):
    progress("Paused", None)
    cancel.wait()
    yield from ()
app["running"].live.stream = paused
app["demo"].launch(**app["options"])
"""
"""The app with an engine that computes nothing: what it costs then is what waiting costs."""


@dataclass
class Server:
    """The app in a process of its own."""

    process: subprocess.Popen[bytes]
    address: str

    def status(self, name: str) -> float | None:
        """A number from the kernel's account of the process; None where there is no such account."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)

    @property
    def spent(self) -> float | None:
        """Seconds of processor time so far, of all its threads."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> float | None:
        """Resident memory in megabytes."""
        kilobytes = self.status("VmRSS")
        return None if kilobytes is None else kilobytes / 1024


@contextmanager
def served_app(target: str, *options: str) -> Iterator[Server]:
    """The app as strangers get it, on a free port of this machine. ``options`` of the interpreter stand before its file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="specviz-load-") as folder:
        more = {"PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_TEMP_DIR": folder, "TMPDIR": folder}
        more |= {"SPECVIZ_TARGET": target, "SPECVIZ_ANY_MODEL": "0", "SPECVIZ_MAX_SECONDS": "120"}
        command = [sys.executable, *options, str(APP)]
        with subprocess.Popen(command, env=os.environ | more, cwd=folder, stdout=subprocess.DEVNULL) as process:
            try:
                _wait_for(process, port)
                yield Server(process, f"http://127.0.0.1:{port}")
            finally:
                process.terminate()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    until, pause = time.monotonic() + STARTING_SECONDS, threading.Event()
    while process.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        pause.wait(0.2)
    raise RuntimeError("The app did not start; run python app.py to see why.")


@dataclass
class Classroom:
    """Visitors who press the page's button again and again until ``runs`` presses are done."""

    form: Form
    runs: int
    generator: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.left_to_do: queue.SimpleQueue[bool] = queue.SimpleQueue()
        for number in range(self.runs):
            self.left_to_do.put(number % 2 == 1)

    def attend(self) -> list[PressOutcome]:
        """What all of them saw."""
        with ThreadPoolExecutor(VISITORS) as pool:
            return [outcome for outcomes in pool.map(lambda _: list(self._visit()), range(VISITORS)) for outcome in outcomes]

    def _visit(self) -> Iterator[PressOutcome]:
        visitor, pause = Visitor(self.form), threading.Event()
        while True:
            try:
                leaving = self.left_to_do.get_nowait()
            except queue.Empty:
                return
            outcome = visitor.press({}, self._leaving() if leaving else lambda outcome: False)
            yield outcome
            if outcome.left:
                visitor = Visitor(self.form)
            if outcome.refused:
                pause.wait(BACK_SECONDS)

    def _leaving(self) -> Any:
        """When somebody who leaves does so: half of them while they wait, half once they see steps."""
        if self.generator.random() < 0.5:
            return lambda outcome: outcome.first_update is not None
        return lambda outcome: outcome.first_step is not None


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Measure; the methods are the page's own."""
    with served_app(target, "-c", PAUSED) as server:
        idle(report, server)
    with served_app(target) as server:
        form = Form(server.address)
        for controls in (SHORT, {}, SHORT):  # loads the model, and what the page's own run touches
            Visitor(form).press(controls)
        waiting(report, server, form)
        before, started = server.memory, time.monotonic()
        threads = server.status("Threads")
        outcomes = Classroom(form, QUICK_RUNS if quick else RUNS).attend()
        took = time.monotonic() - started
        Visitor(form).press(SHORT)  # comes when everybody else is gone
        add_visits(report, outcomes, took)
        resources(report, before, server.memory, threads, server.status("Threads"))


def idle(report: Report, server: Server) -> None:
    """Processor time of the app while pages wait and nothing is computed."""
    form, pause = Form(server.address), threading.Event()
    for count in (1, 1 + WAITERS, 1 + VISITORS):
        while (pages := sum(thread.name == "waiter" for thread in threading.enumerate())) < count:
            threading.Thread(target=Visitor(form).press, args=({},), daemon=True, name="waiter").start()
        pause.wait(SETTLING_SECONDS)
        before = server.spent
        pause.wait(IDLE_SECONDS)
        after = server.spent
        percent = None if before is None or after is None else 100 * (after - before) / IDLE_SECONDS
        goal = 5.0 if pages > 1 else None
        report.add(Row(f"{pages - 1} pages wait", percent, "%", goal, at_most=True, detail="of a core, engine paused"))


def waiting(report: Report, server: Server, form: Form) -> None:
    """The same short run alone and while others wait behind it: processor time of the app, which other work on the machine
    disturbs less than the time by the clock."""
    marks = [server.spent]
    alone = [Visitor(form).press(SHORT) for _ in range(PAIRS)]
    marks.append(server.spent)
    with ThreadPoolExecutor(1 + WAITERS) as pool:
        crowd = list(pool.map(lambda _: Visitor(form).press(SHORT), range(1 + WAITERS)))
    marks.append(server.spent)
    served_app = [outcome for outcome in crowd if outcome.served and outcome.decoding]
    first = sorted(served_app, key=lambda outcome: outcome.over or 0.0)[:PAIRS]
    # By the token: a run that is over its time is cut short while others wait.
    decoding = [
        statistics.median([(outcome.decoding or 0.0) / max(1, outcome.tokens) for outcome in outcomes] or [0.0])
        for outcomes in (alone, first)
    ]
    ratio = None
    detail = f"by the clock {1000 * decoding[1]:.0f} ms a token with 12 to 16 waiting, {1000 * decoding[0]:.0f} ms alone"
    if None not in marks and len(served_app) == len(crowd):
        start, middle, end = (float(outcome or 0.0) for outcome in marks)
        each = [
            spent / sum(outcome.tokens for outcome in outcomes)
            for spent, outcomes in ((end - middle, crowd), (middle - start, alone))
        ]
        ratio = each[0] / each[1]
        detail = f"{1000 * each[0]:.0f} ms of processor a token while sixteen wait, {1000 * each[1]:.0f} ms alone; {detail}"
    report.add(Row("what a token costs while others wait", ratio, "×", 1.1, at_most=True, detail=detail))


def add_visits(report: Report, outcomes: Sequence[PressOutcome], took: float) -> None:
    """How visitors fared."""
    refused, left = [outcome for outcome in outcomes if outcome.refused], [outcome for outcome in outcomes if outcome.left]
    whole = [outcome for outcome in outcomes if outcome.served]
    lost = len(outcomes) - len(refused) - len(left) - len(whole)
    reason = f"; those read: {refused[0].refused}" if refused else ""
    counts = f"{len(whole)} to the end, {len(left)} left midway, {len(refused)} refused, {lost} neither{reason}"
    stayed = len(whole) + len(refused) + lost
    detail = f"{len(outcomes)} runs by {VISITORS} visitors in {took:.0f} s: {counts}"
    report.add(Row("served, of those who stayed", 100 * len(whole) / max(1, stayed), "%", 99.0, detail=detail))
    for name, goal in (("first_update", 5.0), ("first_step", 180.0)):
        times = sorted(at for outcome in outcomes if (at := getattr(outcome, name)) is not None)
        middle, late = _quantile(times, 0.5), _quantile(times, 0.95)
        word = name.replace("_", " ")
        report.add(Row(f"{word}, p50", middle, "s", detail=f"{len(times)} runs"))
        report.add(Row(f"{word}, p95", late, "s", goal, at_most=True))


def _quantile(times: Sequence[float], share: float) -> float | None:
    return times[min(len(times) - 1, round(share * (len(times) - 1)))] if times else None


def resources(report: Report, before: float | None, after: float | None, threads: float | None, later: float | None) -> None:
    """What is left in the app when everybody is gone."""
    grown = None if before is None or after is None else 100 * (after / before - 1)
    detail = "no account of the process here" if grown is None else f"{before:.0f} MB resident before, {after:.0f} MB after"
    report.add(Row("memory grows by", grown, "%", 10.0, at_most=True, detail=detail))
    detail = "" if threads is None else f"{threads:.0f} before"
    report.add(Row("threads after", later, "", detail=detail))
