"""The Compare tab: two runs on one clock and who is faster; recorded, or run now on one prompt, temperature and seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.ui import comparing, theme
from specviz.ui.app_state import AppState
from specviz.ui.comparing import Change
from specviz.ui.run_lookup import title
from specviz.ui.stream import sse
from specviz.ui.tabs import text_run
from specviz.ui.tabs.request_form import FormState
from specviz.ui.tabs.text_run import QUIET
from specviz.ui.widgets import controls, panels
from specviz.viewer.component import Race, Stage

Runs = list[tuple[str, str]]
Offered = tuple[str, float]
"""Prompt and temperature as the tab filled them in."""
ALIGNMENTS = [("token", "token"), ("time", "time"), ("neither", "off")]
ALIGN = "(how) => window.specvizPage.align('#sp-left', '#sp-right', how)"


@dataclass
class CompareTab:
    """Components of the tab; :meth:`updates` applies a :class:`Change` to them."""

    shared: AppState
    left: gr.HTML
    right: gr.HTML
    left_choice: gr.Dropdown
    right_choice: gr.Dropdown
    verdict: gr.HTML
    table: gr.HTML
    banner: gr.HTML
    run: gr.Button
    stop: gr.Button
    prompt: gr.Textbox
    temperature: gr.Number
    offered: gr.State
    how: gr.Radio
    runs: gr.State

    @property
    def outputs(self) -> list[Any]:
        """Components that a change may update."""
        return [
            self.left,
            self.right,
            self.left_choice,
            self.right_choice,
            self.verdict,
            self.table,
            self.banner,
            self.run,
            self.stop,
            self.runs,
            self.prompt,
            self.temperature,
            self.offered,
        ]

    def updates(self, change: Change, runs: Runs) -> dict[Any, Any]:
        """Return a change as Gradio updates of the components that differ."""
        updates: dict[Any, Any] = {}
        if change.left is not None:
            updates[self.left] = change.left
        if change.right is not None:
            updates[self.right] = change.right
        if change.session_run is not None and all(name != change.session_run[0] for _, name in runs):
            runs.append((title(change.session_run[1]), change.session_run[0]))
            updates[self.runs] = runs
        if change.names is not None:
            listed = comparing.listed(self.shared.archive, runs)
            updates[self.left_choice], updates[self.right_choice] = (
                gr.Dropdown(listed, value=name or None) for name in change.names
            )
            updates |= self.versus(change.rounds or (change.names,))
        if change.banner is not None:
            updates[self.banner] = gr.HTML(panels.banner(change.banner), visible=bool(change.banner))
        if change.running is not None:
            updates[self.run] = gr.Button("Running" if change.running else "Run both")
            updates[self.stop] = panels.stop_button(change.running)
            updates |= {self.verdict: comparing.running(), self.table: ""} if change.running else {}
        return updates

    def versus(self, rounds: Sequence[tuple[str, str]]) -> dict[Any, Any]:
        """Return the verdict above the stages and the table below, of named pairs; for a missing run, the way to get it."""
        archive = self.shared.archive
        if any(name.startswith(comparing.METHOD) for pair in rounds for name in pair):
            return {self.verdict: comparing.unrecorded(), self.table: ""}
        try:
            traces = [(archive.trace(left), archive.trace(right)) for left, right in rounds]
        except SpecvizError:
            return {self.verdict: "", self.table: ""}
        left, right = rounds[-1]
        rehearsals = archive.rehearsals(left), archive.rehearsals(right)
        return {self.verdict: comparing.banner(traces, rehearsals), self.table: comparing.table(*traces[-1])}

    def fill(self, left: str, prompt: str, temperature: float, offered: Offered) -> dict[Any, Any]:
        """Prompt and temperature of the left run, unless the visitor has written something else."""
        if (prompt, temperature) != offered or not left or left.startswith(comparing.METHOD):
            return {}
        run = self.shared.archive.run(left)
        new = (run.prompt, run.sampling.temperature)
        return {self.prompt: new[0], self.temperature: new[1], self.offered: new}


def build(shared: AppState, runs: gr.State) -> CompareTab:
    """Lay the tab out. The stages stay empty until the tab is opened."""
    names = comparing.first_pair(shared.archive.gallery)
    listed = comparing.listed(shared.archive, [])
    first = shared.archive.gallery.recordings.get(names[0])
    offered = (first.run.prompt, first.run.sampling.temperature) if first else ("", 0.0)
    with gr.Column(elem_classes="sp-compare"):
        with gr.Row(elem_classes="sp-bar"):
            left_choice, right_choice = (
                gr.Dropdown(listed, value=name or None, label=label, elem_id=elem_id, min_width=330)
                for name, label, elem_id in zip(names, ("Left", "Right"), ("sp-one", "sp-two"), strict=True)
            )
            how = gr.Radio(ALIGNMENTS, value="token", label="Align by", elem_classes="sp-how", min_width=180)
        with gr.Row(elem_classes="sp-bar"):
            prompt = gr.Textbox(offered[0], label="Prompt", lines=1, max_lines=1, elem_id="sp-both-prompt", min_width=300)
            temperature = gr.Number(
                offered[1], label="Temperature", minimum=0, maximum=2, step=0.1, elem_classes="sp-warm", min_width=150
            )
            with gr.Row(elem_classes="sp-go"):
                run = gr.Button("Run both", variant="primary", min_width=0)
                stop = gr.Button("Stop", visible=False, min_width=0, elem_classes="sp-stop")
        banner = theme.html("", visible=False)
        verdict = theme.html("")
        Race("#sp-left #sp-right", name="compare", opened=False, elem_classes="sp-race-box")
        with gr.Row(elem_classes="sp-pair"):
            options: dict[str, Any] = {"elem_classes": "sp-stage", "tail": sse.PATH, "with_script": False, "autoplay": False}
            left, right = (Stage("", elem_id=elem_id, **options) for elem_id in ("sp-left", "sp-right"))
        table = theme.html("")
    return CompareTab(
        shared, left, right, left_choice, right_choice, verdict, table, banner, run, stop, prompt, temperature,
        gr.State(offered), how, runs,
    )  # fmt: skip


def wire(tab: CompareTab, tab_page: gr.Tab, text_controls: list[Any]) -> None:
    """Connect the tab. ``text_controls`` are the Text tab's controls, whose target, length and seed both runs use."""
    shared = tab.shared
    choices = [tab.left_choice, tab.right_choice, tab.runs, tab.prompt, tab.temperature]

    async def opened(
        left: str | None, right: str | None, runs: Runs, prompt: str, temperature: float, offered: Offered, request: gr.Request
    ) -> dict[Any, Any]:
        """Show the pair that the address of a link names; else the chosen one."""
        recordings = shared.archive.gallery.recordings
        named = (request.query_params.get("left"), request.query_params.get("right"))
        left, right = (name if name in recordings else chosen for name, chosen in zip(named, (left, right), strict=True))
        return await pair(left, right, runs, prompt, temperature, offered, request)

    async def pair(
        left: str | None, right: str | None, runs: Runs, prompt: str, temperature: float, offered: Offered, request: gr.Request
    ) -> dict[Any, Any]:
        def shown() -> dict[Any, Any]:
            updates = tab.updates(comparing.both(shared, left or "", right or ""), list(runs))
            return updates | tab.fill(left or "", prompt, temperature, offered)

        return await shared.archive.of([left or "", right or ""], shown, shared.presence.address_of(request))

    def go(
        left: str | None, right: str | None, runs: Runs, prompt: str, temperature: float, request: gr.Request, *values: Any
    ) -> Iterator[dict[Any, Any]]:
        names, session_runs, form = (left or "", right or ""), list(runs), FormState(*values)
        asked = replace(form, prompt=prompt, basics=controls.replaced(form.basics, "temperature", temperature))
        with closing(comparing.live(shared, shared.presence.caller(request), asked, names, names)) as changes:
            for updates in text_run.merge_updates(tab.updates(change, session_runs) for change in changes):
                if text_run.stopping(shared, request.session_hash):
                    updates = updates | {tab.stop: panels.stop_button(stopping=True)}
                yield updates

    for event, handler in ((tab_page.select, opened), (tab.left_choice.input, pair), (tab.right_choice.input, pair)):
        event(handler, [*choices, tab.offered], tab.outputs, **QUIET).then(None, tab.how, None, js=ALIGN)
    tab.how.input(None, tab.how, None, js=ALIGN)
    started = gr.on([tab.run.click, tab.prompt.submit], go, [*choices, *text_controls], tab.outputs, **QUIET)
    started.then(None, tab.how, None, js=ALIGN)
    text_run.wire_stop(shared, tab.stop)
