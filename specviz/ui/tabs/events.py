"""Code that the event handlers of several tabs share: options, stopping a run, and merging updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from specviz.ui.app_state import AppState
from specviz.ui.widgets import panels

Updates = dict[Any, Any]
"""Gradio updates by component."""

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
"""Options of the page's events: no progress overlay, not in the API, no limit on concurrency."""


class TabParts:
    """A tab whose components are its attributes. One is a ``banner``; ``run`` and ``stop`` begin and end a run, if it has any."""

    banner: gr.HTML
    run: gr.Button
    stop: gr.Button
    verb: tuple[str, str]
    """Words on the ``run`` button, before a run and during it."""

    def say(self, message: object, note: bool = False) -> Updates:
        """Updates that show an error in the banner, or a note if ``note``; an empty message hides the banner."""
        return {self.banner: panels.banner(str(message), note)}

    def busy(self, running: bool) -> Updates:
        """Updates of the buttons, during a run or after it. During a run, the stop button keeps what a click made of it."""
        stop = gr.Button(visible=True) if running else gr.Button("Stop", visible=False)
        return {self.run: gr.Button(self.verb[running]), self.stop: stop}

    def merged(self, updates: Iterator[Updates]) -> Iterator[Updates]:
        """Merge each dictionary into the earlier ones.

        Gradio sends only the difference from the previous answer and edits that answer in place in the browser, which draws
        when it has time. So an update that the next answer omits may never be drawn. An empty dictionary drops all earlier ones.
        """
        sent: Updates = {}
        for update in updates:
            sent = {**sent, **update} if update else {}
            yield sent or {self.banner: gr.skip()}

    @property
    def outputs(self) -> list[Any]:
        """Components that a handler may update."""
        return [part for part in vars(self).values() if isinstance(part, gr.components.Component)]


def stop(shared: AppState, session: str | None) -> None:
    """End this page's run at its next step."""
    if page := shared.pages.find(session):
        page.stop()


def run_buttons(shared: AppState, verb: str, elem_id: str | None = None, **look: Any) -> tuple[gr.Button, gr.Button]:
    """A button that begins a run, and one that stops this page's run at its next step and then shows that it is stopping."""

    def halt(request: gr.Request) -> gr.Button:
        stop(shared, request.session_hash)
        return gr.Button("Stopping")  # still enabled, in case this answer comes after the run's last one

    with gr.Row(elem_classes="sp-go"):
        run = gr.Button(verb, variant="primary", elem_id=elem_id, **look)
        button = gr.Button("Stop", visible=False, elem_classes="sp-stop", **look)
    button.click(halt, None, button, queue=False, **QUIET)
    return run, button
