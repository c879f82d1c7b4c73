"""The contention suite: tokens per second on an idle and on a busy machine, by OpenMP setting.

``python -m specviz.bench.contention TARGET follow|fixed`` is a decoder process, which prints a line once the model is loaded.
For each duration in seconds on stdin, the process decodes for that long and prints the tokens per second.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from specviz.bench.report import Report, Row

PROMPT = "Write a story about a dragon and a small village."
TOKENS = 400
SECONDS, ROUNDS = 4.0, 5
ASSETS = Path(__file__).resolve().parents[2] / "assets"

SHIPPED = "as specviz runs"
FIXED = "all threads, fixed"
SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    SHIPPED: ("follow", {}),
    FIXED: ("fixed", {}),
    "GOMP_SPINCOUNT=10000": ("fixed", {"GOMP_SPINCOUNT": "10000"}),
    "OMP_WAIT_POLICY=PASSIVE": ("fixed", {"OMP_WAIT_POLICY": "PASSIVE"}),
    "OMP_NUM_THREADS=1": ("fixed", {"OMP_NUM_THREADS": "1"}),
}
"""Mode and environment variables by label. Mode ``follow``: the number of threads follows the load; ``fixed``: constant."""


class Decoder:
    """A subprocess that decodes on request."""

    def __init__(self, target: str, setting: str) -> None:
        mode, openmp = SETTINGS[setting]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "specviz.bench.contention", target, mode],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ASSETS.parent, env=clean | openmp,
        )  # fmt: skip
        self.next_line()

    def ask(self, seconds: float) -> None:
        """Request ``seconds`` of decoding; returns at once."""
        assert self.process.stdin
        print(seconds, file=self.process.stdin, flush=True)

    def next_line(self) -> str:
        """Wait for the next line of output and return it."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Measure every setting under every load. Settings and loads alternate, so that drift affects all alike."""
    rounds = 2 if quick else ROUNDS
    chosen = (SHIPPED, FIXED) if quick else tuple(SETTINGS)
    with ExitStack() as stack:
        decoders = {name: [stack.enter_context(closing(Decoder(target, name))) for _ in range(2)] for name in chosen}
        scenes = _conditions(report)
        rates_by_scene = {(name, scene): list[float]() for name in chosen for scene in scenes}
        for _ in range(rounds):
            for scene, load in scenes.items():
                for name, (decoder, other) in decoders.items():
                    rates_by_scene[name, scene].append(_rate(decoder, other if scene == SECOND else None, load))
    median = {key: statistics.median(rates) for key, rates in rates_by_scene.items()}
    for name in chosen:
        cells = {scene: f"{median[name, scene]:.1f}" for scene in scenes}
        report.add(Row(name, None, cells={"tokens per second": name, **cells}, table="contention"))
    detail = f"medians of {rounds} runs of {SECONDS:g} s, settings and loads alternating"
    report.add(
        Row("idle, relative to a fixed number of threads", median[SHIPPED, IDLE] / median[FIXED, IDLE], goal=0.97, detail=detail)
    )
    report.add(
        Row("next to an equal run, relative to idle", median[SHIPPED, SECOND] / median[SHIPPED, IDLE], goal=0.45, detail=detail)
    )


def _rate(decoder: Decoder, other: Decoder | None, load: Callable[[], AbstractContextManager[object]]) -> float:
    with load():
        if other:
            other.ask(SECONDS + 2)
            threading.Event().wait(0.5)  # for the other run to start
        decoder.ask(SECONDS)
        rate = float(decoder.next_line())
        if other:
            other.next_line()
        return rate


IDLE, SECOND = "idle", "next to an equal run"


def _conditions(report: Report) -> dict[str, Callable[[], AbstractContextManager[object]]]:
    scenes: dict[str, Callable[[], AbstractContextManager[object]]] = {
        IDLE: nullcontext,
        SECOND: nullcontext,
        "next to a busy loop on each core": busy_loops,
    }
    if browser := chromium_path():
        scenes["next to a browser playing a run"] = partial(_browser, browser)
    else:
        report.say("skipped the load of a browser, since none was found (set SPECVIZ_CHROMIUM to the path of Chromium)")
    return scenes


@contextmanager
def _programs(*commands: Sequence[str]) -> Iterator[None]:
    silent = subprocess.DEVNULL
    running = [subprocess.Popen(command, stdout=silent, stderr=silent, start_new_session=True) for command in commands]
    try:
        yield
    finally:
        for process in running:  # with child processes
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def busy_loops(count: int = 0) -> AbstractContextManager[None]:
    """Run ``count`` busy loops, by default one per core, during the ``with`` block. A loop also ends when this process does."""
    loop = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    return _programs(*([[sys.executable, "-c", loop]] * (count or os.cpu_count() or 1)))


def chromium_path() -> str | None:
    """Return the path of Chromium, or None if it is not installed."""
    return os.environ.get("SPECVIZ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def _browser(browser: str) -> Iterator[None]:
    """Play a recorded run in a headless browser during the ``with`` block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the killed browser may still be writing
        page, trace = Path(folder) / "run.html", ASSETS / "traces" / "stand.spectrace.jsonl.gz"
        command = [sys.executable, "-m", "specviz", "export", str(trace), "--to", "html", "--out", str(page)]
        subprocess.run(command, check=True, capture_output=True, cwd=ASSETS.parent)
        with _programs([browser, "--headless", "--no-sandbox", f"--user-data-dir={folder}/profile", "--remote-debugging-port=0",
                        "--window-size=1280,720", page.as_uri()]):  # fmt: skip
            threading.Event().wait(2)  # for the page to open
            yield


def main(target: str, mode: str) -> None:
    """Decode for each duration in stdin."""
    from specviz.engine.threads import ThreadLimit
    from specviz.pipeline.request import Request
    from specviz.pipeline.runner import prepare

    ready = prepare(Request(method="autoregressive", prompt=PROMPT, target=target, max_new_tokens=TOKENS))
    print("ready", flush=True)
    for line in sys.stdin:
        until, tokens = time.perf_counter() + float(line), 0
        started = time.perf_counter()
        while time.perf_counter() < until:
            with ThreadLimit() if mode == "follow" else nullcontext():
                for step in ready.decoding(ready.compose(), 0).steps():
                    tokens += len(step.emitted)
                    if time.perf_counter() >= until:
                        break
        print(tokens / (time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
