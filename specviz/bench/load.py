"""The load and live suites: thirty visitors of the app at once, and the costs of waiting for a run and of watching one.

In the load suite, the app runs in its own process. Visitors are simulated in this process and, unlike browsers on other
machines, take processor time from the app. Requests use the loopback address only.
"""

from __future__ import annotations

import json
import os
import queue
import random
import runpy
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
from dataclasses import dataclass
from pathlib import Path

import psutil

from specviz.bench.kit import Bencher, in_own_thread
from specviz.bench.report import Report, Row, paired
from specviz.bench.visitor import Form, Outcome, Visitor
from specviz.pipeline.request import Memory, Request
from specviz.pipeline.runner import stream
from specviz.prompts import prompts
from specviz.trace import metrics, store
from specviz.trace.schema import End, Run, Step, Trace

APP = Path(__file__).resolve().parents[2] / "app.py"
RECORDED = APP.parent / "assets" / "traces" / "eagle2.spectrace.jsonl.gz"
VISITORS, RUNS, QUICK_RUNS = 30, 200, 60
WAITERS, PAIRS = 16, 5
IDLE_SECONDS, SETTLING_SECONDS, STARTING_SECONDS = 15.0, 5.0, 120.0
BACK_SECONDS = 5.0
"""Seconds before a refused visitor presses *Run live* again."""


def controls(prompt: str, tokens: int, **more: str) -> dict[str, str]:
    """Return the page's control values for a greedy run of prompt lookup without a baseline."""
    return {
        "sp-method": "prompt_lookup",
        "sp-prompt": prompt,
        "sp-basics": json.dumps({"of": "basics", "values": {"temperature": 0.0, "max_new_tokens": tokens}}),
        "sp-advanced": json.dumps({"of": "advanced", "values": {"baseline": False}}),
        "sp-own": '{"of":"","values":{}}',
        **more,
    }


SHORT = controls("Write a short story about a fox who learns to swim.", 32)
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
"""Program that runs the app with an engine that only waits, so that all processor time is the cost of waiting."""


@dataclass
class Server:
    """A process that serves the app."""

    process: psutil.Popen
    address: str

    @property
    def spent(self) -> float:
        """CPU time so far in seconds, over all threads."""
        return sum(self.process.cpu_times()[:2])

    @property
    def memory(self) -> float:
        """Resident memory in MiB."""
        return self.process.memory_info().rss / 2**20


@contextmanager
def served_app(target: str, *options: str) -> Iterator[Server]:
    """Serve the app on a free port, with the settings of a public Space. ``options``: options of the Python interpreter."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="specviz-load-") as folder:
        more = {"PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_TEMP_DIR": folder, "TMPDIR": folder}
        more |= {"SPECVIZ_TARGET": target, "SPECVIZ_ANY_MODEL": "0", "SPECVIZ_MAX_SECONDS": "120"}
        command = [sys.executable, *options, str(APP)]
        with psutil.Popen(command, env=os.environ | more, cwd=folder, stdout=subprocess.DEVNULL) as process:
            try:
                until = time.monotonic() + STARTING_SECONDS
                while socket.socket().connect_ex(("127.0.0.1", port)):
                    if process.poll() is not None or time.monotonic() > until:
                        raise RuntimeError("The app did not start. Run python app.py to see the error.")
                    threading.Event().wait(0.2)
                yield Server(process, f"http://127.0.0.1:{port}")
            finally:
                process.terminate()


def load(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Measure waiting pages, the cost of a token while other runs wait, and a classroom of visitors."""
    with served_app(target, "-c", PAUSED) as server:
        idle(report, server)
    with served_app(target) as server:
        form = Form(server.address)
        for one in (SHORT, {}, SHORT):  # load the model and the drafter of the page's default run
            Visitor(form).press(one)
        waiting(report, server, form)
        before, threads, started = server.memory, server.process.num_threads(), time.monotonic()
        outcomes = classroom(form, QUICK_RUNS if quick else RUNS)
        add_visits(report, outcomes, time.monotonic() - started)
        Visitor(form).press(SHORT)  # after all other visitors have left
        after = server.memory
        report.add(
            Row(
                "memory grows by", 100 * (after / before - 1), "%", 10.0, at_most=True,
                detail=f"{before:.0f} MB resident before, {after:.0f} MB after",
            )
        )  # fmt: skip
        report.add(Row("threads after", float(server.process.num_threads()), "", detail=f"{threads} before"))


def idle(report: Report, server: Server) -> None:
    """Measure the app's processor time while pages wait for a paused engine."""
    form, pause, pages = Form(server.address), threading.Event(), 0
    for count in (1, 1 + WAITERS, 1 + VISITORS):
        for _ in range(count - pages):
            threading.Thread(target=Visitor(form).press, args=({},), daemon=True).start()
        pages = count
        pause.wait(SETTLING_SECONDS)
        before = server.spent
        pause.wait(IDLE_SECONDS)
        percent = 100 * (server.spent - before) / IDLE_SECONDS
        goal = 5.0 if pages > 1 else None
        report.add(Row(f"{pages - 1} waiting pages", percent, "%", goal, at_most=True, detail="share of a core, engine paused"))


def waiting(report: Report, server: Server, form: Form) -> None:
    """Measure processor time per token, alone and while other runs wait. (Other programs disturb wall time more.)"""
    start = server.spent
    alone = [Visitor(form).press(SHORT) for _ in range(PAIRS)]
    middle = server.spent
    with ThreadPoolExecutor(1 + WAITERS) as pool:
        crowd = list(pool.map(lambda _: Visitor(form).press(SHORT), range(1 + WAITERS)))
    end = server.spent

    ours = (end - middle) / sum(outcome.tokens for outcome in crowd)
    theirs = (middle - start) / sum(outcome.tokens for outcome in alone)
    detail = f"{1000 * ours:.0f} ms of processor time per token while sixteen wait, {1000 * theirs:.0f} ms alone"
    value = ours / theirs if all(outcome.served for outcome in crowd) else None
    report.add(Row("cost of a token while others wait, relative to alone", value, "×", 1.1, at_most=True, detail=detail))


def classroom(form: Form, runs: int) -> list[Outcome]:
    """Simulate ``VISITORS`` visitors until ``runs`` runs have started.

    Every second run is left midway, at the first update or the first step.
    """
    presses: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(runs):
        presses.put(number)
    draw, pause = random.Random(0), threading.Event()

    def attend(_: int) -> list[Outcome]:
        visitor, outcomes = Visitor(form), list[Outcome]()
        while not presses.empty():
            try:
                number = presses.get_nowait()
            except queue.Empty:
                break
            news = "first_update" if draw.random() < 0.5 else "first_step"
            leaving = number % 2 == 1
            outcomes.append(visitor.press({}, lambda one: leaving and getattr(one, news) is not None))
            if outcomes[-1].left:
                visitor = Visitor(form)
            if outcomes[-1].refused:
                pause.wait(BACK_SECONDS)
        return outcomes

    with ThreadPoolExecutor(VISITORS) as pool:
        return [outcome for outcomes in pool.map(attend, range(VISITORS)) for outcome in outcomes]


def add_visits(report: Report, outcomes: Sequence[Outcome], took: float) -> None:
    """Report how many runs were completed, left, refused and lost, and the times to the first update and the first step."""
    refused, left = [one for one in outcomes if one.refused], [one for one in outcomes if one.left]
    whole = [one for one in outcomes if one.served]
    lost = len(outcomes) - len(refused) - len(left) - len(whole)
    reason = f"; their message: {refused[0].refused}" if refused else ""
    counts = f"{len(whole)} completed, {len(left)} left midway, {len(refused)} refused, {lost} lost{reason}"
    report.add(
        Row(
            "share served, among those who stayed", 100 * len(whole) / max(1, len(outcomes) - len(left)), "%", 99.0,
            detail=f"{len(outcomes)} runs by {VISITORS} visitors in {took:.0f} s: {counts}",
        )
    )  # fmt: skip
    for name, goal in (("first_update", 5.0), ("first_step", 180.0)):
        times = [at for one in outcomes if (at := getattr(one, name)) is not None]
        quantiles(report, name.replace("_", " "), times, goal)


def quantiles(report: Report, what: str, times: Sequence[float], goal: float | None = None) -> None:
    """Report the median and the 95th percentile of ``times`` in seconds; ``goal`` bounds the 95th percentile."""
    ordered = sorted(times)
    for share in (0.5, 0.95):
        value = ordered[round(share * (len(ordered) - 1))] if ordered else None
        late = goal if share > 0.9 else None
        report.add(Row(f"{what}, p{100 * share:.0f}", value, "s", late, at_most=True, detail=f"{len(ordered)} runs"))


def long_trace(steps: int) -> bytes:
    """Return the bytes of a trace of ``steps`` steps, made by repeating the steps of a recorded run."""
    run = store.read(RECORDED)
    whole = [step for step in run.steps if step.cut is None]
    made: list[Step] = []
    position, root = whole[0].position, whole[0].nodes[0].token
    for index in range(steps):
        step = whole[index % len(whole)]
        nodes = (step.nodes[0].replace(token=root), *step.nodes[1:])
        made.append(step.replace(index=index, position=position, nodes=nodes))
        position, root = position + len(step.emitted), step.emitted[-1]
    output = tuple(token for step in made for token in step.emitted)
    end = End("budget", output, "", 1, metrics.summarise(made, "budget", 1))
    return store.text(Trace(run.run.replace(max_new_tokens=len(output)), tuple(made), end)).encode("utf-8")


class Clock:
    """Decoding speed of the last run. ``rate``: tokens per second from the run record to the end record, without prefill."""

    rate = 0.0

    def timed(self, events: Iterator[Run | Step | End]) -> Iterator[Run | Step | End]:
        """Yield the events of a run and time them."""
        started, tokens = time.perf_counter(), 0
        for event in events:
            if isinstance(event, Step):
                tokens += len(event.emitted)
            if isinstance(event, End):
                self.rate = tokens / (time.perf_counter() - started - event.prefill_ns / 1e9)
            yield event
            if isinstance(event, Run):
                started = time.perf_counter()


def watching(report: Report, target: str, methods: Sequence[str] = (), quick: bool = False) -> None:
    """Measure updates per second of a run that another process watches, and tokens per second of watched and unwatched runs.

    The app runs in this process, so that watched and unwatched runs share one model.
    """
    clock, counts, bench, prompt = Clock(), list[dict[str, float]](), Bencher(target), prompts("chat")[0]
    request = Request("prompt_lookup", prompt, target=target, max_new_tokens=bench.tokens, **bench.settings)
    app = runpy.run_path(str(APP))
    live = app["running"].live
    whole, pressed = live.stream, controls(prompt, bench.tokens, **{"sp-target": target})
    live.stream = lambda *asked: clock.timed(whole(*asked))
    options = {**app["options"], "prevent_thread_lock": True, "quiet": True, "server_port": None, "server_name": "127.0.0.1"}
    _, address, _ = app["demo"].launch(**options)
    command = [sys.executable, "-m", "specviz.bench.visitor", address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=APP.parent) as process:
        assert process.stdin and process.stdout
        asked, answers = process.stdin, process.stdout
        answers.readline()

        def watched() -> float:
            print(json.dumps(pressed), file=asked, flush=True)
            counts.append(json.loads(answers.readline()))
            return clock.rate

        def alone() -> float:
            in_own_thread(lambda: list(clock.timed(stream(request, memory=Memory()))))
            return clock.rate

        alone(), watched()
        ratios = paired(watched, alone, 9)
        asked.close()
    app["demo"].close()
    rate = statistics.median(count["updates"] / count["seconds"] for count in counts[1:])
    reading = statistics.median(1000 * count["cpu"] / count["updates"] for count in counts[1:])
    report.add(Row("live view, updates", rate, "/s", 10.0, detail=f"reading an update costs the watcher {reading:.2f} ms"))
    report.add(
        Row(
            "live view costs", 100 * (1 / ratios.median - 1), "%", 3.0, at_most=True,
            detail=f"tokens per second, watched ÷ unwatched {ratios}",
        )
    )  # fmt: skip
