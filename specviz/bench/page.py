"""The page suite: the time to open the page, and to draw a frame of a long run.

Chromium opens the app, which runs in its own process. Performance marks record when the stage becomes visible. Chromium also
emulates slower connections and processors.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.bench.contention import chromium_path
from specviz.bench.load import long_trace, served_app
from specviz.bench.report import Report, Row
from specviz.errors import BadInput
from specviz.trace import store

VISITS, QUICK_VISITS = 7, 3
STEPS = (300, 1000)
FRAMES = 60
"""Number of steps to show, evenly spaced over the run."""
FRAME_MS = 8.0
PATIENCE_MS = 120_000
AFTERWARDS_MS = 1500
"""Milliseconds to wait for further requests after the stage is visible. Fixed, since some connections stay open."""
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
  stage.player.pause();
  const overview = stage.panels.find((panel) => panel.drawVeil);
  const times = {{ whole: [], lane: [] }};
  let lane = 0;
  for (const name of ["update", "settle"]) {{
    const draw = Object.getPrototypeOf(overview)[name];
    overview[name] = (changed) => {{
      performance.mark("lane");
      draw.call(overview, changed);
      lane += performance.measure("lane", "lane").duration;
    }};
  }}
  for (let at = 0; at < frames; at += 1) {{
    stage.go(Math.round((at * stage.last) / (frames - 1)));
    lane = 0;
    performance.mark("frame");
    stage.flush();
    times.whole.push(performance.measure("frame", "frame").duration);
    times.lane.push(lane);
  }}
  return times;
}}"""


@dataclass(frozen=True)
class Line:
    """A visitor's connection and processor.

    ``goal``: milliseconds until the stage is visible. ``megabits``: Mbit/s; None for no limit. ``latency``: milliseconds.
    ``slower``: slowdown factor of the processor.
    """

    name: str
    goal: float
    megabits: float | None = None
    latency: float = 0.0
    slower: int = 1


LINES = (Line("this machine", 1500), Line("10 Mbit/s, processor four times slower", 3000, 10, 20, 4))


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Measure opening the page and drawing frames. ``methods`` is ignored."""
    with served_app(target) as server, chromium() as browser:
        for line in LINES:
            visits = [open_page(browser, server.address, line) for _ in range(QUICK_VISITS if quick else VISITS)]
            add_visits(report, line, visits[1:])  # the first visit warms up the server
        for steps in STEPS:
            first, again = frame_times(browser, server.address, steps)
            for title, times, goal in (
                ("run lane", again["lane"], FRAME_MS),
                ("whole stage", again["whole"], FRAME_MS),
                ("whole stage, first pass", first["whole"], None),
            ):
                report.add(
                    Row(
                        f"{title}, one frame of a run of {steps} steps", statistics.median(times), "ms", goal, at_most=True,
                        detail=f"95th percentile {sorted(times)[int(0.95 * len(times))]:.1f} ms of {len(times)} frames, {load()}",
                    )
                )  # fmt: skip


@contextmanager
def chromium() -> Iterator[Any]:
    """Launch Chromium. Raises BadInput if Chromium or playwright is missing."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise BadInput("The page suite needs playwright: pip install playwright.") from None
    if not (path := chromium_path()):
        raise BadInput("The page suite needs Chromium: install it, or set SPECVIZ_CHROMIUM to its path.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Any, address: str, line: Line) -> tuple[float, float]:
    """Open the page with an empty cache; return the milliseconds until the stage was visible, and the bytes received."""
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
    """Report the median time and the median size of the visits."""
    times, sizes = zip(*visits, strict=True)
    detail = f"{min(times):.0f} to {max(times):.0f} ms in {len(visits)} visits, {load()}"
    report.add(Row(f"stage seen, {line.name}", statistics.median(times), "ms", line.goal, at_most=True, detail=detail))
    report.add(Row(f"sent to a first visitor, {line.name}", statistics.median(sizes) / 1e6, "MB"))


def load() -> str:
    """Return a phrase with the machine's load average over one minute."""
    return f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"


def frame_times(browser: Any, address: str, steps: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the milliseconds of script time per frame, for two passes over a run of ``steps`` steps."""
    context = browser.new_context(viewport=SIZE)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{address}/?tab=traces")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"long{store.SUFFIX}"
        file.write_bytes(long_trace(steps))
        page.get_by_role("tab", name="Traces").click()
        page.locator("input[type=file]").first.set_input_files(file)
        page.locator(".sp-facts", has_text=f"in {steps} passes").wait_for()
    page.get_by_role("button", name="Show on the stage").click()
    page.wait_for_function(f"{STAGE}.trace.steps.length === {steps}")
    first, again = (page.evaluate(FRAME_TIMES, FRAMES) for _ in range(2))
    context.close()
    return first, again
