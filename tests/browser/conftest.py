"""A browser for a test file, and tabs that show a trace. Playwright is looked for only when a test wants one."""

from contextlib import closing

import pytest

from specviz.trace import store
from tests.support.traces.samples import sample_trace


@pytest.fixture(scope="package")
def browser(chromium):
    """One Chromium for the tests of this folder."""
    pytest.importorskip("playwright")
    from tests.support.pages import stage as stage_page

    with stage_page.browser(chromium) as opened:
        yield opened


@pytest.fixture(scope="module")
def visitor(browser, url):
    """A visitor of the app that the test file serves at its ``url``: each test finds the page as the one before has left it."""
    from tests.support.pages.app import AppPage

    with closing(AppPage(browser, url)) as found:
        yield found


@pytest.fixture
def newcomer(browser, url):
    """A visitor whom no other test has seen."""
    from tests.support.pages.app import AppPage

    with closing(AppPage(browser, url)) as found:
        yield found


@pytest.fixture
def show(browser, tmp_path):
    """``show(text, ...)`` opens a trace, or the plain sample, in a tab of its own; each must end without complaints."""
    from tests.support.pages.stage import StagePage

    tabs = []

    def opened(text=None, *, size=None, context=None, **how):
        given = store.text(sample_trace(14)) if text is None else text
        tabs.append(StagePage(browser, size, **(context or {})).open(tmp_path, given, **how))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.close()
