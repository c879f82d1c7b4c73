"""Event handling shared by the tabs: options, the run and stop buttons, merging of updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from specviz.ui.app_state import AppState
from specviz.ui.widgets import panels

Updates = dict[Any, Any]
"""Gradio updates by component."""

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
"""Options of events: no progress overlay, not in the public API, no concurrency limit."""


class TabParts:
    """Base class of tabs, with the components as attributes. A tab without runs has no ``run`` or ``stop`` button."""

    banner: gr.HTML
    run: gr.Button
    stop: gr.Button
    verb: tuple[str, str]
    """Labels of the ``run`` button without and with an active run."""

    def say(self, message: object, note: bool = False) -> Updates:
        """Return the update that shows an error, or with ``note`` a note, in the banner. An empty message hides the banner."""
        return {self.banner: panels.banner(str(message), note)}

    def busy(self, running: bool) -> Updates:
        """Return the updates of the run and stop buttons. During a run, the label of the stop button is not changed."""
        stop = gr.Button(visible=True) if running else gr.Button("Stop", visible=False)
        return {self.run: gr.Button(self.verb[running]), self.stop: stop}

    def merged(self, updates: Iterator[Updates]) -> Iterator[Updates]:
        """Yield each update merged with all earlier updates. An empty update drops the earlier ones.

        The browser patches the previous update in place and renders when idle. If the next update omits a component, that
        component's previous change may therefore never be rendered.
        """
        sent: Updates = {}
        for update in updates:
            sent = {**sent, **update} if update else {}
            yield sent or {self.banner: gr.skip()}

    @property
    def outputs(self) -> list[Any]:
        """The components of the tab."""
        return [part for part in vars(self).values() if isinstance(part, gr.components.Component)]


def stop(shared: AppState, session: str | None) -> None:
    """Stop the page's run at the next step."""
    if page := shared.pages.find(session):
        page.stop()


def run_buttons(shared: AppState, verb: str, elem_id: str | None = None, **style: Any) -> tuple[gr.Button, gr.Button]:
    """Return a button that starts a run and a button that stops the page's run."""

    def halt(request: gr.Request) -> gr.Button:
        stop(shared, request.session_hash)
        return gr.Button("Stopping")  # not disabled, because this update may arrive after the run's last update

    with gr.Row(elem_classes="sp-go"):
        run = gr.Button(verb, variant="primary", elem_id=elem_id, **style)
        button = gr.Button("Stop", visible=False, elem_classes="sp-stop", **style)
    button.click(halt, None, button, queue=False, **QUIET)
    return run, button
