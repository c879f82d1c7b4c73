"""A page with the stage on it, in a real Chromium, and what the tests ask of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from specviz.viewer import replay

PATIENCE = 60.0
"""Seconds to wait for what has to come. It costs nothing where a page answers, and a busy machine may need it."""

expect.set_options(timeout=1000 * PATIENCE)

# Chromium loads the pages of its own address bar in every window, which no test opens, for as long as ours take.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,AimEnabled,OptimizationHints,NetworkTimeServiceQuerying,MediaRouter",
)  # fmt: skip
PROJECTOR: dict[str, int] = {"width": 1280, "height": 720}
PHONE: dict[str, int] = {"width": 390, "height": 844}


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """A Chromium that asks nothing of the network by itself."""
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=path, args=list(FLAGS))
        yield opened
        opened.close()


def patient(page: Page) -> Page:
    """The page, which now waits as long for an address or an action as tests wait for what they expect."""
    page.set_default_timeout(1000 * PATIENCE)
    page.set_default_navigation_timeout(1000 * PATIENCE)
    return page


class Visit:
    """A tab of its own. ``requests`` are those it made, of which ``own`` may be; ``errors`` what the console complained of."""

    own: tuple[str, ...] = ("file:", "data:", "blob:")

    def __init__(self, opened: Browser, **context: Any) -> None:
        self.context = opened.new_context(**{"viewport": PROJECTOR, **context})
        self.page: Page = patient(self.context.new_page())
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.page.on("pageerror", lambda one: self.errors.append(str(one)))
        self.page.on("console", lambda one: self.errors.append(one.text) if one.type == "error" else None)

    def outside(self) -> list[str]:
        """Requests for anything but its own."""
        return [url for url in self.requests if not url.startswith(self.own)]

    def close(self) -> None:
        """Leave; whatever the page complained of fails the test."""
        self.context.close()
        assert self.errors == []
        assert self.outside() == []


class StagePage(Visit):
    """One tab that shows a trace."""

    def __init__(self, opened: Browser, size: dict[str, int] | None = None, **context: Any) -> None:
        super().__init__(opened, viewport=size or PROJECTOR, **context)

    def open(self, folder: Path, text: str, autoplay: bool = False, query: str = "", speed: float | None = None) -> StagePage:
        """Write the one-file replay of ``text`` and open it from disk."""
        file = folder / "replay.html"
        file.write_text(replay.page(text, autoplay=autoplay, speed=speed), encoding="utf-8")
        self.page.goto(file.as_uri() + query)
        self.until("Boolean(window.stage)")
        return self

    def until(self, condition: str) -> None:
        """Wait for a JavaScript expression to be true. The page's own policy forbids Playwright's way of waiting."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self.run(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {condition}")

    def run(self, script: str, given: Any = None) -> Any:
        """The value of a JavaScript expression or function on the page."""
        return self.page.evaluate(script, given)

    def step(self) -> int:
        """The step that is shown, counted from 0."""
        return int(self.run("stage.stage.cursor"))

    def steps(self) -> int:
        """How many steps have arrived."""
        return int(self.run("stage.stage.trace.steps.length"))

    def go(self, step: int) -> None:
        """Show a step and wait until it is drawn."""
        self.run("(step) => { stage.go(step); stage.flush(); }", step)

    def follow(self, lines: list[str], run: str = "key", **state: Any) -> None:
        """Say how a live run is, as the app does, and hand over lines of it."""
        control = json.dumps({"kind": "stage", "mode": "live", "run": run, "follow": True, **state}) + "\n"
        self.run(
            """([control, lines]) => {
              stage.stage.feed.tail = (run, from, take) => { window.give = take; return () => {}; };
              stage.update(control);
              if (lines.length) give(lines.join("\\n"));
              stage.flush();
            }""",
            [control, lines],
        )


Open = Callable[..., StagePage]
