"""The Compare tab: two runs side by side, in step by token or by time; recorded, or run now on one prompt and seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.ui import comparing, theme
from specviz.ui.comparing import Change
from specviz.ui.shared import AppState
from specviz.ui.shown import choices, title
from specviz.ui.stream import sse as tail
from specviz.ui.stream.cumulative import gathered
from specviz.ui.tabs import text_run
from specviz.ui.tabs.request_form import FormState
from specviz.ui.widgets import choice, panels
from specviz.viewer.component import Stage

Runs = list[tuple[str, str]]
ALIGNMENTS = [("token", "token"), ("time", "time"), ("neither", "off")]
ALIGN = "(how) => window.specvizPage.align('#sp-left', '#sp-right', how)"


@dataclass
class CompareTab:
    """The components, and how a :class:`Change` reaches them."""

    shared: AppState
    left: gr.HTML
    right: gr.HTML
    left_choice: gr.Dropdown
    right_choice: gr.Dropdown
    sentence: gr.HTML
    table: gr.HTML
    banner: gr.HTML
    run: gr.Button
    stop: gr.Button
    method: gr.HTML
    how: gr.Radio
    runs: gr.State

    @property
    def outputs(self) -> list[Any]:
        """Everything a change may touch."""
        return [
            self.left,
            self.right,
            self.left_choice,
            self.right_choice,
            self.sentence,
            self.table,
            self.banner,
            self.run,
            self.stop,
            self.runs,
        ]

    def updates(self, change: Change, runs: Runs) -> dict[Any, Any]:
        """The change as Gradio wants it: only the components that differ."""
        updates: dict[Any, Any] = {}
        if change.left is not None:
            updates[self.left] = change.left
        if change.right is not None:
            updates[self.right] = change.right
        if change.session_run is not None and all(name != change.session_run[0] for _, name in runs):
            runs.append((title(change.session_run[1]), change.session_run[0]))
            updates[self.runs] = runs
        if change.names is not None:
            listed = choices(self.shared.archive, runs)
            updates[self.left_choice], updates[self.right_choice] = (
                gr.Dropdown(listed, value=name or None) for name in change.names
            )
            updates |= self.versus(*change.names)
        if change.banner is not None:
            updates[self.banner] = gr.HTML(panels.banner(change.banner), visible=bool(change.banner))
        if change.running is not None:
            updates[self.run] = gr.Button("Running" if change.running else "Run both")
            updates[self.stop] = gr.Button(visible=change.running)
        return updates

    def versus(self, left: str, right: str) -> dict[Any, Any]:
        """The sentence above the two and the table below, or nothing while one of them is missing."""
        try:
            pair = self.shared.archive.trace(left), self.shared.archive.trace(right)
        except SpecvizError:
            return {self.sentence: "", self.table: ""}
        sentence = f'<p class="sp-parting">{panels.markup(comparing.sentence(*pair))}</p>'
        return {self.sentence: sentence, self.table: comparing.table(*pair)}


def build(shared: AppState, runs: gr.State) -> CompareTab:
    """Lay the tab out. The stages stay empty until the tab is opened."""
    names = comparing.first_pair(shared.archive.gallery)
    with gr.Column(elem_classes="sp-compare"):
        with gr.Row(elem_classes="sp-bar"):
            left_choice = gr.Dropdown(
                choices(shared.archive, []),
                value=names[0] or None,
                label="Left",
                elem_id="sp-one",
                min_width=200,
            )
            right_choice = gr.Dropdown(
                choices(shared.archive, []),
                value=names[1] or None,
                label="Right",
                elem_id="sp-two",
                min_width=200,
            )
            how = gr.Radio(ALIGNMENTS, value="token", label="Align by", elem_classes="sp-how", min_width=180)
            method = choice.choice(
                choice.methods(), "autoregressive", "Text tab's run against", elem_id="sp-other", elem_classes="sp-against"
            )
            with gr.Row(elem_classes="sp-go"):
                run = gr.Button("Run both", variant="primary", min_width=0)
                stop = gr.Button("Stop", visible=False, min_width=0, elem_classes="sp-stop")
        banner = theme.html("", visible=False)
        sentence = theme.html("")
        with gr.Row(elem_classes="sp-pair"):
            left, right = (_stage(shared, elem_id) for elem_id in ("sp-left", "sp-right"))
        table = theme.html("")
    return CompareTab(shared, left, right, left_choice, right_choice, sentence, table, banner, run, stop, method, how, runs)


def _stage(shared: AppState, elem_id: str) -> Stage:
    """An empty stage, half as wide as the page."""
    lines = shared.archive.store.lines
    return Stage("", elem_id=elem_id, elem_classes="sp-stage", lines=lines, tail=tail.PATH, with_script=False, autoplay=False)


def wire(tab: CompareTab, tab_page: gr.Tab, text_controls: list[Any]) -> None:
    """Connect the tab. ``text_controls`` are the Text tab's controls, whose prompt and seed both runs use."""
    shared = tab.shared
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}

    def opened(left: str | None, right: str | None, runs: Runs, request: gr.Request) -> dict[Any, Any]:
        """The pair that the address names, where a link leads here; else the one that was chosen."""
        recordings = shared.archive.gallery.recordings
        named = (request.query_params.get("left"), request.query_params.get("right"))
        left, right = (name if name in recordings else chosen for name, chosen in zip(named, (left, right), strict=True))
        return pair(left, right, runs)

    def pair(left: str | None, right: str | None, runs: Runs) -> dict[Any, Any]:
        return tab.updates(comparing.both(shared, left or "", right or ""), list(runs))

    def go(
        left: str | None, right: str | None, runs: Runs, other: str, request: gr.Request, *controls: Any
    ) -> Iterator[dict[Any, Any]]:
        before, session_runs = (left or "", right or ""), list(runs)
        with closing(comparing.live(shared, shared.presence.caller(request), FormState(*controls), other, before)) as changes:
            yield from gathered(tab.updates(change, session_runs) for change in changes)

    def halt(request: gr.Request) -> None:
        text_run.stop(shared, request.session_hash)

    for event, handler in ((tab_page.select, opened), (tab.left_choice.input, pair), (tab.right_choice.input, pair)):
        event(handler, [tab.left_choice, tab.right_choice, tab.runs], tab.outputs, **quiet).then(None, tab.how, None, js=ALIGN)
    tab.how.input(None, tab.how, None, js=ALIGN)
    tab.run.click(go, [tab.left_choice, tab.right_choice, tab.runs, tab.method, *text_controls], tab.outputs, **quiet)
    tab.stop.click(halt, None, None, queue=False, show_progress="hidden", api_visibility="private")
