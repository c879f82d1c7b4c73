"""The Compare tab: two runs on one clock and which is faster; recorded, or run live on one prompt, temperature and seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.pipeline.request import Memory, Request
from specviz.ui import comparing, theme
from specviz.ui.access import Caller
from specviz.ui.app_state import AppState
from specviz.ui.archive import MINE, join
from specviz.ui.stream import sse
from specviz.ui.tabs.events import QUIET, TabParts, Updates, run_buttons, streamed
from specviz.ui.tabs.request_form import FormState
from specviz.ui.tabs.run_tab import Runs, RunTab
from specviz.ui.widgets import controls, panels
from specviz.viewer import pair
from specviz.viewer.component import Race, Stage, control

WAITS = "Waits until the left run is over"
"""Message on the right stage during the left run."""

Pair = tuple[str, str]
Offered = tuple[str, float]
"""Prompt and temperature as the tab filled them in."""
ALIGN = "(how) => window.specvizPage.align('#sp-left', '#sp-right', how)"


class CompareTab(TabParts):
    """The tab, whose stages stay empty until it is opened. Its handlers return Gradio updates by component."""

    def __init__(self, shared: AppState, tab_page: gr.Tab, text: RunTab) -> None:
        """Lay the tab out and connect it. Both runs use the target of the ``text`` tab."""
        self.shared, self.runs = shared, text.runs
        names, listed = comparing.first_pair(shared.archive.gallery), comparing.listed(shared.archive, [])
        first = shared.archive.gallery.recordings.get(names[0])
        offered = (first.run.prompt, first.run.sampling.temperature) if first else ("", 0.0)
        self.offered = gr.State(offered)
        with gr.Column(elem_classes="sp-compare"):
            with gr.Row(elem_classes="sp-bar"):
                self.sides = [
                    gr.Dropdown(listed, value=name or None, label=label, elem_id=elem_id, min_width=330)
                    for name, label, elem_id in zip(names, ("Left", "Right"), ("sp-one", "sp-two"), strict=True)
                ]
                self.how = gr.Radio(
                    ["token", "time", ("neither", "off")], value="token", label="Align by", elem_classes="sp-how", min_width=180
                )
            with gr.Row(elem_classes="sp-bar"):
                self.prompt = gr.Textbox(
                    offered[0], label="Prompt", lines=1, max_lines=1, elem_id="sp-both-prompt", min_width=300
                )  # fmt: skip
                self.temperature = gr.Number(
                    offered[1], label="Temperature", minimum=0, maximum=2, step=0.1, elem_classes="sp-warm", min_width=150
                )
                self.run, self.stop = run_buttons(shared, "Run both", min_width=0)
            self.banner = theme.html("", visible=False)
            self.verdict = theme.html("")
            Race("#sp-left #sp-right", name="compare", opened=False, elem_classes="sp-race-box")
            with gr.Row(elem_classes="sp-pair"):
                options: dict[str, Any] = {"elem_classes": "sp-stage", "tail": sse.PATH, "autoplay": False}
                self.stages = [Stage("", elem_id=elem_id, **options) for elem_id in ("sp-left", "sp-right")]
            self.table = theme.html("")
        self.wire(tab_page, text)

    def both(self, names: Pair, runs: Runs, rounds: Sequence[Pair] = ()) -> Updates:
        """Show two existing runs and their comparison, over several ``rounds`` if given; a method without a run shows nothing."""
        try:
            feeds = ["" if name.startswith(comparing.METHOD) else self.shared.archive.feed(name) for name in names]
        except SpecvizError as error:
            return self.say(error)
        return dict(zip(self.stages, feeds, strict=True)) | self.say("") | self.versus(rounds or (names,), runs)

    def versus(self, rounds: Sequence[Pair], runs: Runs) -> Updates:
        """Select the last of these pairs, with the verdict above the stages and the table below; for a missing run, say how to
        get it."""
        archive, listed = self.shared.archive, comparing.listed(self.shared.archive, runs)
        chosen = {side: gr.Dropdown(listed, value=name or None) for side, name in zip(self.sides, rounds[-1], strict=True)}
        verdict = table = ""
        if any(name.startswith(comparing.METHOD) for names in rounds for name in names):
            verdict = comparing.unrecorded()
        else:
            with suppress(SpecvizError):
                traces = [(archive.trace(left), archive.trace(right)) for left, right in rounds]
                recordings = [archive.gallery.recordings.get(name) for name in rounds[-1]]
                verdict = comparing.banner(traces, [one.rehearsals if one else 0 for one in recordings])
                table = f'<div class="sp-versus">{pair.table(*traces[-1], comparing.ROWS)}</div>'
        return chosen | {self.verdict: verdict, self.table: table}

    async def opened(self, left: str | None, right: str | None, request: gr.Request, *values: Any) -> Updates:
        """Show the pair that the page's address names, else the chosen one."""
        recordings = self.shared.archive.gallery.recordings
        named = (request.query_params.get(side) for side in ("left", "right"))
        left, right = (name if name in recordings else one for name, one in zip(named, (left, right), strict=True))
        return await self.pair(left, right, request, *values)

    async def pair(
        self, left: str | None, right: str | None, request: gr.Request, runs: Runs, prompt: str, temperature: float,
        offered: Offered,
    ) -> Updates:  # fmt: skip
        """Show the chosen pair, with the prompt and temperature of its left run unless the visitor has written something else."""

        def shown() -> Updates:
            updates = self.both((left or "", right or ""), list(runs))
            if (prompt, temperature) != offered or not left or left.startswith(comparing.METHOD):
                return updates
            run = self.shared.archive.run(left)
            new = (run.prompt, run.sampling.temperature)
            return updates | {self.prompt: new[0], self.temperature: new[1], self.offered: new}

        return await self.shared.read([left or "", right or ""], shown, request)

    def go(
        self, left: str | None, right: str | None, runs: Runs, prompt: str, temperature: float, request: gr.Request, *values: Any
    ) -> Iterator[Updates]:
        """Run both in turn, on the prompt and temperature of this tab."""
        shared, names, form = self.shared, (left or "", right or ""), FormState(*values)
        asked = replace(form, prompt=prompt, basics=controls.replaced(form.basics, "temperature", temperature))
        changes = self.running(shared.presence.caller(request), asked, names, list(runs))
        yield from streamed(shared, request.session_hash, self.stop, changes)

    def running(self, caller: Caller, form_state: FormState, names: Pair, runs: Runs) -> Iterator[Updates]:
        """Run both sides in turn, :data:`comparing.ROUNDS` times, each from an empty memory, and add the runs to ``runs``."""
        idle: Updates = {self.run: gr.Button("Run both"), self.stop: panels.stop_button(False)}
        begun = {self.run: gr.Button("Running"), self.stop: panels.stop_button()} | self.say("")
        waits = control("live", "next", message=WAITS)
        try:
            requests = comparing.requests(self.shared, form_state, names)
            yield begun | {self.verdict: comparing.running(), self.table: ""} | dict(zip(self.stages, ("", waits), strict=True))
            yield from self.in_turn(caller, requests, names, runs)
        except SpecvizError as error:
            yield self.say(error)
        yield idle

    def in_turn(self, caller: Caller, requests: list[Request], before: Pair, runs: Runs) -> Iterator[Updates]:
        """Run A, B, A, B, each with its autoregressive run. A stop leaves the last complete round, or the left run alone; the
        pair ``before`` is shown again when a run cannot begin."""
        page, rounds = self.shared.pages.enter(caller.session, caller.address), list[Pair]()
        for _ in range(comparing.ROUNDS):
            names = list(rounds[-1] if rounds else before)
            for side, request in enumerate(requests):
                with closing(self.shared.live.run(page, request, caller, Memory())) as frames:
                    for frame in frames:
                        failure = self.say(frame.failure) if frame.failure else {}
                        if not page.current(frame.cancel) or (failure and not frame.begun):
                            yield self.both(before, runs) | (failure if page.current(frame.cancel) else {})
                            return
                        updates: Updates = {self.stages[side]: frame.feed} | failure
                        if frame.begun:
                            names[side] = MINE + frame.key
                        if frame.trace and join(runs, names[side], frame.trace):
                            updates[self.runs] = runs
                        yield updates
                stopped = frame.trace is not None and frame.trace.end is not None and frame.trace.end.reason == "cancelled"
                if stopped and rounds:
                    yield self.both(rounds[-1], runs, rounds)
                    return
                if stopped and not side:
                    updates = self.both((names[0], names[1]), runs)
                    updates.pop(self.stages[0], None)  # that stage shows it already
                    yield updates
                    return
            rounds.append((names[0], names[1]))
        yield self.versus(rounds, runs)

    def wire(self, tab_page: gr.Tab, text: RunTab) -> None:
        """Connect the controls."""
        choices = [*self.sides, self.runs, self.prompt, self.temperature]
        outputs = [*self.outputs, *self.stages, *self.sides]
        for event, handler in ((tab_page.select, self.opened), *((side.input, self.pair) for side in self.sides)):
            event(handler, [*choices, self.offered], outputs, **QUIET).then(None, self.how, None, js=ALIGN)
        self.how.input(None, self.how, None, js=ALIGN)
        started = gr.on([self.run.click, self.prompt.submit], self.go, [*choices, *text.request_controls], outputs, **QUIET)
        started.then(None, self.how, None, js=ALIGN)
