"""Parts that the event handlers of several tabs share: options, stopping a run, and what an answer has to hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from specviz.ui.app_state import AppState
from specviz.ui.widgets import panels

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
"""Options of the page's events: no progress overlay, not in the API, no limit on concurrency."""


def stop(shared: AppState, session: str | None) -> None:
    """End this page's run at its next step."""
    if page := shared.pages.find(session):
        page.stop()


def wire_stop(shared: AppState, button: gr.Button) -> None:
    """Connect a button that stops this page's run at its next step and then shows that it is stopping."""

    def halt(request: gr.Request) -> gr.Button:
        stop(shared, request.session_hash)
        return panels.stop_button(stopping=True)

    button.click(halt, None, button, queue=False, show_progress="hidden", api_visibility="private")


def stopping(shared: AppState, session: str | None) -> bool:
    """Whether this page's run was stopped and has not ended yet."""
    page = shared.pages.find(session)
    return page is not None and page.running and page.cancel is not None and page.cancel.is_set()


def merge_updates(updates: Iterator[dict[Any, Any]]) -> Iterator[dict[Any, Any]]:
    """Merge each dictionary over the earlier ones.

    Gradio sends only the difference from the previous answer and edits that answer in place in the browser, which draws when
    it has time. So an update that the next answer omits may never be drawn. An empty dictionary drops all earlier ones.
    """
    sent: dict[Any, Any] = {}
    for update in updates:
        sent = {**sent, **update} if update else {}
        yield sent
