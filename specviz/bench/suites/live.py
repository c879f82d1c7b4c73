"""The live suite: the cost of watching, the same decoding watched through the app by another process and not watched."""

from __future__ import annotations

import json
import runpy
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specviz.bench.kit.measure import Bencher, in_own_thread, median_ratio, range_text
from specviz.bench.kit.prompts import CHAT
from specviz.bench.kit.report import Report, Row
from specviz.request import Memory, Request
from specviz.runner import stream
from specviz.trace.schema import End, Run, Step

APP = Path(__file__).resolve().parents[3] / "app.py"
METHOD, PROMPT = "prompt_lookup", CHAT[0]
PAIRS = 9


class Clock:
    """Wall-clock tokens a second of the last run, from its run line to its end line, whoever takes its events meanwhile."""

    rate = 0.0

    def timed(self, events: Iterator[Run | Step | End]) -> Iterator[Run | Step | End]:
        """The same events."""
        started, tokens = time.perf_counter(), 0
        for event in events:
            if isinstance(event, Step):
                tokens += len(event.emitted)
            if isinstance(event, End):
                self.rate = tokens / (time.perf_counter() - started - event.prefill_ns / 1e9)
            yield event
            if isinstance(event, Run):
                started = time.perf_counter()


@contextmanager
def served_app(clock: Clock) -> Iterator[str]:
    """The app in this process, so that both kinds of run share one model; its address."""
    app = runpy.run_path(str(APP))
    running = app["running"].live
    whole = running.stream
    running.stream = lambda *request: clock.timed(whole(*request))
    _, address, _ = app["demo"].launch(
        **{**app["options"], "prevent_thread_lock": True, "quiet": True, "server_port": None, "server_name": "127.0.0.1"}
    )
    try:
        yield address
    finally:
        app["demo"].close()


@contextmanager
def watching(address: str) -> Iterator[Callable[[dict[str, Any]], dict[str, float]]]:
    """A watcher in a process of its own: a function that has it press Run live and says what it saw."""
    command = [sys.executable, "-m", "specviz.bench.kit.headless_client", address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=APP.parent) as process:
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout
        answers.readline()

        def press(controls: dict[str, Any]) -> dict[str, float]:
            print(json.dumps(controls), file=requests, flush=True)
            return json.loads(answers.readline())

        yield press
        requests.close()


def live_view(report: Report, bench: Bencher) -> None:
    """Updates a second while a run is watched, and tokens a second watched against not watched."""
    clock, counts = Clock(), []
    basics = {"of": "basics", "values": {"temperature": 0.0, "max_new_tokens": bench.tokens}}
    advanced = {"of": "advanced", "values": {"baseline": False}}
    controls = {"sp-method": METHOD, "sp-target": bench.target, "sp-prompt": PROMPT}
    forms = {"sp-basics": json.dumps(basics), "sp-advanced": json.dumps(advanced), "sp-own": '{"of":"","values":{}}'}
    request = Request(method=METHOD, prompt=PROMPT, target=bench.target, max_new_tokens=bench.tokens, **bench.settings)

    def decode() -> None:
        for _ in clock.timed(stream(request, memory=Memory(), cancel=threading.Event())):
            pass

    def alone() -> float:
        in_own_thread(decode)  # as the app does: a thread for each run
        return clock.rate

    alone()
    with served_app(clock) as address, watching(address) as press:

        def watched() -> float:
            counts.append(press(controls | forms))
            return clock.rate

        watched(), alone()
        median, ratios = median_ratio(watched, alone, PAIRS)
    _add_rows(report, counts[1:], median, ratios)


def _add_rows(report: Report, counts: list[dict[str, float]], median: float, ratios: list[float]) -> None:
    rate = statistics.median(count["updates"] / count["seconds"] for count in counts)
    reading = statistics.median(1000 * count["cpu"] / count["updates"] for count in counts)
    detail = f"median of {len(counts)} runs that were watched; reading one costs the watcher {reading:.2f} ms"
    report.add(Row("live view, updates", rate, "/s", 10.0, detail=detail))
    cost = 100 * (1 / median - 1)
    detail = f"tokens a second, watched ÷ not watched {range_text(ratios)}"
    report.add(Row("live view costs", cost, "%", 3.0, at_most=True, detail=detail))
