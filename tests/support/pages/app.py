"""The app in a real Chromium: served on a free port with a replaying engine, and what the tests ask of its page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser

from specviz.ui.app_state import AppState
from tests.support.pages.served import served as running
from tests.support.pages.stage import PATIENCE, Visit

STAGE = "document.querySelector('{id} .specviz-host').specviz.stage"


@contextmanager
def served(shared: AppState) -> Iterator[str]:
    """The app's address while it runs."""
    built, url = running(shared)
    try:
        yield url
    finally:
        built.close()


class AppPage(Visit):
    """One visitor, who was here before or is ``new``."""

    def __init__(self, opened: Browser, url: str, query: str = "", new: bool = False, **context: Any) -> None:
        super().__init__(opened, **context)
        if not new:
            self.page.add_init_script("localStorage.setItem('specviz-visited', 'yes')")
        self.url, self.own = url, (url, "data:", "blob:")
        self.page.on("dialog", lambda one: self.errors.append(f"dialog {one.message}"))
        self.page.goto(url + query)
        self.until(f"{self.stage()}.trace.steps.length > 0")

    @staticmethod
    def stage(id: str = "#sp-stage") -> str:
        """The stage inside a component, as JavaScript."""
        return STAGE.format(id=id)

    def run(self, script: str, id: str = "#sp-stage") -> Any:
        """A property of a stage, such as ``cursor`` or ``trace.mode``."""
        return self.page.evaluate(f"{self.stage(id)}.{script}")

    def until(self, condition: str, seconds: float = PATIENCE) -> None:
        """Wait for a JavaScript expression to be true."""
        guarded = f"() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }}"
        self.page.wait_for_function(guarded, timeout=seconds * 1000)

    def tab(self, name: str) -> None:
        """Open a tab, out of the menu where the bar has no room for it."""
        self.page.locator(".sp-tabs > .tab-wrapper").get_by_role("tab").first.wait_for()
        shown = self.page.get_by_role("tab", name=name, exact=True)
        if shown.count() == 0:
            self.page.get_by_role("button", name="More tabs").click()
            shown = self.page.locator(".overflow-dropdown").get_by_role("button", name=name, exact=True)
        shown.click()

    def button(self, name: str) -> Any:
        """A button that can be seen, by its whole name."""
        return self.page.get_by_role("button", name=name, exact=True).locator("visible=true")

    def choose(self, id: str, option: str) -> None:
        """Choose from one of the page's drop-downs."""
        self.page.locator(f"{id} input").click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def pick(self, id: str, option: str) -> None:
        """Choose from one of the page's drop-downs with headings."""
        self.page.locator(f"{id} select").select_option(label=option)

    def options(self, id: str) -> list[str]:
        """What one of the page's drop-downs offers."""
        if self.page.locator(f"{id} select").count():
            return self.page.locator(f"{id} option").all_text_contents()
        self.page.locator(f"{id} input").click()
        found = self.page.get_by_role("option").all_inner_texts()
        self.page.keyboard.press("Escape")
        return [one.replace("✓", "").strip() for one in found]
