"""The Methods tab: all methods on one clock, a map of their papers, exact and relaxed pictures. The page's script draws them.

The lanes are the recorded runs of the folder ``race``, which share a prompt, or a visitor's live runs of one prompt.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.methods.registry import families
from specviz.paths import ASSETS
from specviz.pipeline.request import Memory
from specviz.trace import metrics
from specviz.trace.schema import Trace
from specviz.ui.access import Caller
from specviz.ui.app_state import AppState
from specviz.ui.archive import MINE, Gallery, join
from specviz.ui.deep_links import RunTabs
from specviz.ui.tabs import request_form
from specviz.ui.tabs.events import QUIET
from specviz.ui.tabs.request_form import FormState
from specviz.ui.tabs.run_tab import Runs, RunTab
from specviz.ui.widgets import panels

MOST_METHODS, MOST_SECONDS, TOKENS = 20, 180.0, 64
"""Bounds of a live race: number of methods, time in seconds after which no method is started, and new tokens of a run."""


def lane(name: str, trace: Trace) -> dict[str, Any]:
    """Return a run as a lane. A step is its time in ns, the number of accepted draft tokens, and the emitted pieces."""
    verdict = metrics.compared_speed(trace)
    return {
        "name": name,
        "prompt": trace.run.prompt,
        "method": trace.run.method,
        "title": trace.run.title,
        "promise": metrics.promise(trace),
        "parting": metrics.parting(trace),
        "tau": metrics.tau(trace.steps),
        "speedup": verdict and verdict.speedup,
        "plain": trace.baseline.token_ns if trace.baseline else (),
        "steps": [(step.time.total, step.accepted, step.pieces) for step in trace.steps],
    }


def papers(gallery: Gallery) -> list[dict[str, Any]]:
    """Return every method with its family, its paper, the paper's address and the name of a recorded run, if there is one."""
    listed = []
    for family, group in families().items():
        for method in group:
            paper, run = method.paper, gallery.of_method(method.name)
            listed.append(
                method.plain()
                | {"family": family, "paper": paper and vars(paper), "run": run and run.name}
                | {"url": panels.ARXIV + paper.arxiv if paper and paper.arxiv else ""}
            )
    return listed


class MethodsTab:
    """The Methods tab."""

    def __init__(self, shared: AppState, tab_page: gr.Tab, text: RunTab, run_tabs: RunTabs, script: str) -> None:
        """Build the tab. ``script``: JavaScript that draws the value."""
        self.shared = shared
        filled, field = gr.State(False), gr.HTML("", html_template="<div></div>", js_on_load=script, apply_default_css=False)

        def race(runs: Runs, event: gr.EventData, request: gr.Request) -> Iterator[tuple[str, Runs]]:
            yield from self.race(shared.presence.caller(request), event.prompt, event.methods, list(runs))

        def halt(request: gr.Request) -> None:
            if page := shared.pages.find(request.session_hash):
                page.turn_away()

        async def play_lane(event: gr.EventData, request: gr.Request, *runs: Runs) -> Any:
            return await run_tabs.play(event.name, request, *runs)

        tab_page.select(self.opened, filled, [field, filled], **QUIET)
        field.submit(race, text.runs, [field, text.runs], **QUIET)
        field.stop(halt, None, None, queue=False, **QUIET)
        field.select(play_lane, run_tabs.runs, run_tabs.outputs, **QUIET)

    async def opened(self, filled: bool, request: gr.Request) -> tuple[Any, bool]:
        """Return the recorded lanes when the tab is opened for the first time, and the live ones that the URL names."""
        if filled:
            return gr.skip(), True
        archive, linked, note = self.shared.archive, list[dict[str, Any]](), ""
        recorded = archive.gallery.race
        names = [name for name in request.query_params.get("methods", "").split(",")[:MOST_METHODS] if name.startswith(MINE)]
        try:
            for name in names:
                await archive.recall(name, self.shared.presence.address_of(request))
            linked = await self.shared.read(names, lambda: [lane(name, archive.trace(name)) for name in names], request)
        except SpecvizError as error:
            note = str(error)
        prompt, lanes = recorded[0].run.prompt if recorded else "", [lane(one.name, one.trace) for one in recorded]
        relaxed = json.loads((ASSETS / "relaxation.json").read_text("utf-8"))
        return value(lanes, prompt, note, papers=papers(archive.gallery), linked=linked, relaxed=relaxed), True

    def race(self, caller: Caller, prompt: str, methods: Sequence[str], runs: Runs) -> Iterator[tuple[str, Runs]]:
        """Run methods one after the other, each from an empty memory, and yield the lanes so far. Adds the runs to ``runs``."""
        settings, lanes, note = self.shared.settings, list[dict[str, Any]](), ""
        try:
            basics, advanced = request_form.forms(settings)
            basics = request_form.replaced(basics, "max_new_tokens", min(TOKENS, settings.max_new_tokens))
            asked = [
                request_form.request(
                    FormState(method, settings.target, prompt, basics, advanced, request_form.method_answer(method)), settings
                )
                for method in methods[:MOST_METHODS]
            ]
            page, end = self.shared.pages.enter(caller), time.monotonic() + MOST_SECONDS
            for place, request in enumerate(asked, 1):
                if time.monotonic() > end:
                    note = f"A race may take {MOST_SECONDS:g} s here, so the last {len(asked) - place + 1} methods did not start."
                    break
                with closing(self.shared.live.run(page, request, caller, Memory())) as frames:
                    for frame in frames:
                        yield value(lanes, prompt, frame.message, request.method, f"{place} of {len(asked)}"), runs
                if not page.current(frame.cancel):
                    break
                if frame.trace:
                    lanes.append(lane(MINE + frame.key, frame.trace))
                    join(runs, MINE + frame.key, frame.trace.run)
                note = frame.failure or note
        except SpecvizError as error:
            note = str(error)
        yield value(lanes, prompt, note), runs


def value(
    lanes: list[dict[str, Any]], prompt: str, note: str = "", running: str = "", place: str = "", **once: Any
) -> str:  # fmt: skip
    """Return the value of the component. ``running``: method that is running; ``place``: its place among the methods;
    ``once``: the ``papers``, the ``linked`` live lanes and the ``relaxed`` pictures.
    """
    return json.dumps({"lanes": lanes, "prompt": prompt, "note": note, "running": running, "place": place} | once)
