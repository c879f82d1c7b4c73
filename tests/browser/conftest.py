"""A browser for a test file, and tabs that show a trace. Playwright is looked for only when a test wants one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from specviz.trace import store
from tests.support.traces.samples import sample_trace


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Any]:
    """One Chromium for the tests of this folder."""
    pytest.importorskip("playwright")
    from tests.support.pages import stage as stage_page

    with stage_page.browser(chromium) as opened:
        yield opened


@pytest.fixture(scope="module")
def visitor(browser: Any, url: str) -> Iterator[Any]:
    """A visitor of the app that the test file serves at its ``url``: each test finds the page as the one before has left it."""
    from tests.support.pages.app import AppPage

    with closing(AppPage(browser, url)) as found:
        yield found


@pytest.fixture
def newcomer(browser: Any, url: str) -> Iterator[Any]:
    """A visitor whom no other test has seen."""
    from tests.support.pages.app import AppPage

    with closing(AppPage(browser, url)) as found:
        yield found


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """``show(text, ...)`` opens a trace, or the plain sample, in a tab of its own; each must end without complaints."""
    from tests.support.pages.stage import StagePage

    tabs: list[StagePage] = []

    def opened(text: str | None = None, *, size: Any = None, context: Any = None, **how: Any) -> StagePage:
        given = store.text(sample_trace(14)) if text is None else text
        tabs.append(StagePage(browser, size, **(context or {})).open(tmp_path, given, **how))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.close()
