"""The page suite: what opening the page costs a visitor, and what a frame of a long run costs the browser.

A real Chromium opens the app, which runs in a process of its own on this machine; the browser's own marks say when the stage
was seen. Slower lines and processors are the browser's emulation of them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.bench.kit.report import Report, Row
from specviz.bench.suites.load import served_app
from specviz.bench.suites.uploads import lesson
from specviz.errors import BadInput
from specviz.trace import store

VISITS, QUICK_VISITS = 7, 3
STEPS = (300, 1000)
FRAMES = 60
"""Steps that are shown one after the other, spread over the run."""
FRAME_MS = 8.0
PATIENCE_MS = 120_000
AFTERWARDS_MS = 1500
"""For what the page asks for once the stage is seen, which counts as sent; some of its connections stay open for good."""
SIZE: Any = {"width": 1280, "height": 720}

SEEN = """(() => {
  const look = () => {
    const node = document.querySelector("#sp-stage .sv-tree .sv-node");
    if (node && node.getClientRects().length) performance.mark("stage-seen"); else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""
WAS_SEEN = "performance.getEntriesByName('stage-seen').length > 0"
STAGE = "document.querySelector('#sp-stage .specviz-host').specviz.stage"
FRAME_TIMES = f"""(frames) => {{
  const stage = {STAGE};
  const times = {{ whole: [], lane: [] }};
  const overview = stage.panels.find((panel) => panel.drawVeil);
  for (const name of ["update", "settle"]) {{
    const draw = overview[name].bind(overview);
    overview[name] = (changed) => {{ performance.mark("lane"); draw(changed);
      times.lane[times.lane.length - 1] += performance.measure("lane", "lane").duration; }};
  }}
  for (let at = 0; at < frames; at += 1) {{
    stage.go(Math.round((at * stage.last) / (frames - 1)));
    times.lane.push(0);
    performance.mark("frame");
    stage.flush();
    times.whole.push(performance.measure("frame", "frame").duration);
  }}
  return times;
}}"""


@dataclass(frozen=True)
class Line:
    """A visitor's connection and processor. ``latency`` is in milliseconds, ``slower`` the factor of the processor."""

    name: str
    goal: float
    megabits: float | None = None
    latency: float = 0.0
    slower: int = 1


LINES = (Line("this machine", 1500), Line("10 Mbit/s, processor 4 times slower", 3000, 10, 20, 4))


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Measure; there are no methods to choose."""
    with served_app(target) as server, chromium() as browser:
        for line in LINES:
            visits = [open_page(browser, server.address, line) for _ in range(QUICK_VISITS if quick else VISITS)]
            add_visits(report, line, visits[1:])  # the first one warms the server
        for steps in STEPS:
            times = frame_times(browser, server.address, steps)
            for name, goal in (("lane", FRAME_MS), ("whole", None)):
                spread = sorted(times[name])
                detail = f"95th percentile {spread[int(0.95 * len(spread))]:.1f} ms of {len(spread)} frames"
                title = {"lane": "run lane, a frame of", "whole": "whole stage, a frame of"}[name]
                report.add(Row(f"{title} {steps} steps", statistics.median(spread), "ms", goal, at_most=True, detail=detail))


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser. Raises BadInput where there is none, or nothing to drive it."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise BadInput("The page suite drives a browser: pip install playwright.") from None
    path = os.environ.get("SPECVIZ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not path:
        raise BadInput("The page suite needs a Chromium: install one, or name it in SPECVIZ_CHROMIUM.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Any, address: str, line: Line) -> tuple[float, float]:
    """A first visit, nothing cached: milliseconds until the stage was seen, and bytes that came over the line."""
    context = browser.new_context(viewport=SIZE)
    page, sizes = context.new_page(), []
    devtools = context.new_cdp_session(page)
    devtools.send("Network.enable")
    devtools.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    if line.megabits:
        speed = line.megabits * 1e6 / 8
        limits = {"offline": False, "latency": line.latency, "downloadThroughput": speed, "uploadThroughput": speed}
        devtools.send("Network.emulateNetworkConditions", limits)
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": line.slower})
    page.add_init_script(SEEN)
    page.goto(address, wait_until="commit", timeout=PATIENCE_MS)
    page.wait_for_function(WAS_SEEN, timeout=PATIENCE_MS)
    page.wait_for_timeout(AFTERWARDS_MS)
    seen = page.evaluate("performance.getEntriesByName('stage-seen')[0].startTime")
    context.close()
    return float(seen), float(sum(sizes))


def add_visits(report: Report, line: Line, visits: Sequence[tuple[float, float]]) -> None:
    """Median time and weight of the visits, with how busy the machine was."""
    times, sizes = zip(*visits, strict=True)
    busy = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    detail = f"{min(times):.0f} to {max(times):.0f} ms in {len(visits)} visits, {busy}"
    report.add(Row(f"stage seen, {line.name}", statistics.median(times), "ms", line.goal, at_most=True, detail=detail))
    report.add(Row(f"sent, {line.name}", statistics.median(sizes) / 1e6, "MB"))


def frame_times(browser: Any, address: str, steps: int) -> dict[str, list[float]]:
    """Milliseconds of script that each frame takes while a run of ``steps`` steps is walked through."""
    context = browser.new_context(viewport=SIZE)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{address}/?tab=traces")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"long{store.SUFFIX}"
        file.write_bytes(lesson(steps=steps))
        page.get_by_role("tab", name="Traces").click()
        page.locator("input[type=file]").first.set_input_files(file)
        page.locator(".sp-facts", has_text=f"in {steps} passes").wait_for()
    page.get_by_role("button", name="Show on the stage").click()
    page.wait_for_function(f"{STAGE}.trace.steps.length === {steps}")
    times: dict[str, list[float]] = page.evaluate(FRAME_TIMES, FRAMES)
    context.close()
    return times
