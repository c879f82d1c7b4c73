"""The Traces tab: open trace files, export runs, and inspect a drafter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.engine.stop import computing
from specviz.errors import BadInput, SpecvizError
from specviz.figures.theme import markup
from specviz.inspection import OWN, PROMPTS
from specviz.methods.registry import get
from specviz.trace.store import Outline
from specviz.ui import theme
from specviz.ui.access import Caller
from specviz.ui.app_state import AppState
from specviz.ui.archive import choices, title
from specviz.ui.deep_links import RunTabs
from specviz.ui.stream.engine import COMPUTING, Progress
from specviz.ui.tabs import request_form
from specviz.ui.tabs.events import QUIET, TabParts, Updates, run_buttons
from specviz.ui.tabs.run_tab import Runs, RunTab
from specviz.ui.widgets import downloads, panels
from specviz.ui.widgets.figures import fluid
from specviz.viewer.pair import number

if TYPE_CHECKING:
    from specviz.inspection.report import Report

TRACES = """<h2>Traces</h2><p>A run is stored as a trace file: one line for the request, one for each step and one for the end.
Any engine can write such files: the format is in <code>specviz/trace/trace.schema.json</code>, and
<code>python -m specviz validate FILE</code> validates a file. Only this page can see a run that you open here. The uploaded
file is deleted within twenty minutes, or when the app ends.</p>"""


class TracesTab(TabParts):
    """The Traces tab."""

    def __init__(self, shared: AppState, tab_page: gr.Tab, text: RunTab, run_tabs: RunTabs) -> None:
        """Build the tab. ``text``: tab whose run is selected at first; ``run_tabs``: tabs in which a run can be shown."""
        self.shared, self.runs, archive = shared, text.runs, shared.archive
        runs = run_tabs.runs
        name = archive.gallery.default_name
        with gr.Column(elem_classes="sp-page"):
            theme.html(TRACES)
            self.banner = theme.html("", visible=False)
            with gr.Row(elem_classes="sp-two"):
                with gr.Column(min_width=300):
                    self.chosen = gr.Dropdown(choices(archive, []), value=name or None, label="Run", elem_id="sp-run")
                    self.facts = theme.html(facts(archive.outline(name)) if name else "")
                    show = gr.Button("Show on the stage", variant="primary", size="md")
                with gr.Column(min_width=300):
                    theme.html("<h3>Save this run as</h3>")
                    self.downloads = downloads.buttons(name, elem_id="sp-downloads")
                    theme.html("<h3>Open a trace file</h3>")
                    self.upload = gr.UploadButton(
                        "Choose a .spectrace.jsonl file", file_types=[".jsonl"], elem_id="sp-upload", size="md"
                    )
            if not shared.settings.zero_gpu:  # a Space without a permanent GPU runs models in another process
                Inspection(shared)
        tab_page.select(self.enter, [text.run_name, *runs], self.outputs, **QUIET)
        self.chosen.input(self.enter, [self.chosen, *runs], self.outputs, **QUIET)
        self.upload.upload(self.take, [self.upload, self.chosen, *runs], self.outputs, **QUIET)
        show.click(run_tabs.play, [self.chosen, *runs], run_tabs.outputs, **QUIET)

    async def enter(self, name: str | None, request: gr.Request, *runs: Runs) -> Updates:
        """Return the updates that select a run. ``runs``: the session's runs, one list per tab."""
        name = name or ""

        def shown() -> Updates:
            try:
                return {self.facts: facts(self.shared.archive.outline(name)) if name else "", self.downloads: name}
            except SpecvizError as error:
                return {self.facts: "", self.downloads: ""} | self.say(error)

        updates = await self.shared.read([name], shown, request)
        listed = gr.Dropdown(choices(self.shared.archive, [*chain(*runs)]), value=updates[self.downloads] or None)
        return {self.chosen: listed} | self.say("") | updates

    async def take(self, path: str | None, now: str, request: gr.Request, first: Runs, *others: Runs) -> Updates:
        """Open an uploaded file, add the run to the ``first`` list, and select it."""
        name, banner = now, Updates()
        try:
            if path:
                name = await self.shared.archive.open(path, self.shared.presence.address_of(request))
                if name not in dict(chain(first, *others)).values():
                    opened = await self.shared.read([name], lambda: title(self.shared.archive.run(name)), request)
                    first = [*first, (f"opened: {opened}", name)]
        except SpecvizError as error:
            banner = self.say(f"The file was not opened. {error}")
        return await self.enter(name, request, first, *others) | banner | {self.runs: first, self.upload: None}


def facts(outline: Outline) -> str:
    """Return an HTML list of a run's settings and results."""
    run, end = outline.run, outline.end
    metrics = end.metrics if end else {}
    speed, rate = metrics.get("speedup"), metrics.get("tokens_per_second")
    temperature = run.sampling.temperature
    rows = {
        "method": run.title,
        "target": run.target,
        "draft model": run.draft,
        "method's promise": run.exactness + (f" ({run.bound})" if run.bound else ""),
        "sampling": f"temperature {temperature:g}, seed {run.sampling.seed}" if temperature else "greedy",
        "earlier runs remembered": str(run.sampling.generation or ""),
        "written": f"{outline.tokens} tokens in {outline.steps} passes, τ {number(metrics.get('tau'))}",
        "speed": f"{rate:.1f} tokens per second" + (f", {speed:.2f}× the autoregressive run" if speed else "") if rate else "",
        "on": ", ".join(filter(None, (run.machine, run.device, run.dtype, run.tier))),
        "ended": (end.reason + (f": {end.message}" if end.message else "")) if end else "incomplete: the file has no end line",
        "recorded": run.recorded_at,
        "prompt": run.prompt[:400] + ("…" if len(run.prompt) > 400 else ""),
    }
    return panels.facts({name: markup(value) for name, value in rows.items()})


TOKENS, DEPTH = 64, 5
"""Maximum number of tokens per answer, and of draft tokens per chain, as in the ``inspect`` command."""
INSPECT = """<h2>Inspect a drafter</h2><p>A drafter that is loaded with the wrong conventions runs without an error but drafts
badly. In an inspection, the target answers four prompts. The report says how well the drafter predicts these answers, as loaded
and under alternative conventions. <code>python -m specviz inspect</code> does the same.</p>"""
LOOK = "(...values) => [...values.slice(0, -1), document.body.classList.contains('dark') ? 'dark' : 'light']"


def inspected(drafter: str, target: str, progress: Progress) -> Report:
    """Inspect a drafter and return the report. The first call imports torch."""
    progress("Starting the engine", None)
    with computing(COMPUTING, progress):
        from specviz.inspection.report import inspect

        return inspect(drafter, target, PROMPTS, TOKENS, DEPTH, True, progress)


def inspecting(shared: AppState, caller: Caller, drafter: str | None, target: str | None) -> Iterator[str | Report]:
    """Wait in the queue of runs, inspect a drafter, and yield progress messages, then the report.

    Ends without a report if the page starts something else. Raises SpecvizError if the inspection fails.
    """
    name, any_model = drafter.strip() if isinstance(drafter, str) else "", shared.settings.any_model
    if not name or len(name) > 300 or (name not in OWN and not any_model):
        raise BadInput(f"Choose an included drafter: {', '.join(OWN)}" + (", or name a folder or hub id." * any_model or "."))
    on = request_form.model(target, shared.settings)
    request_form.check_room(on, name)
    page, reports = shared.pages.enter(caller), list[Any]()

    def work(progress: Progress) -> None:
        reports.append(inspected(name, on, progress))

    with closing(shared.live.aside(page, work, caller)) as frames:
        for frame in frames:
            if not page.current(frame.cancel):
                return
            if frame.failure:
                raise SpecvizError(frame.failure)
            yield frame.message if frame.fraction is None else f"{frame.message} · {frame.fraction:.0%}"
    yield from reports


class Inspection(TabParts):
    """Section of the Traces tab that inspects a drafter."""

    verb = ("Inspect", "Inspecting")

    def __init__(self, shared: AppState) -> None:
        self.shared, settings = shared, shared.settings
        theme.html(INSPECT)
        with gr.Row():
            drafter = gr.Dropdown(
                [(get(name).title, name) for name in OWN], value="eagle3", allow_custom_value=settings.any_model,
                label="Drafter" + ", or a folder or hub id" * settings.any_model, elem_id="sp-drafter", min_width=260,
            )  # fmt: skip
            target = gr.Dropdown(
                request_form.models("target", settings, own=settings.target), value=settings.target, label="Target",
                allow_custom_value=settings.any_model, min_width=260,
            )  # fmt: skip
        self.run, self.stop = run_buttons(shared, self.verb[0], size="md")
        self.banner, self.report = theme.html("", visible=False), theme.html("", elem_id="sp-inspected")
        self.plots = [gr.Plot(show_label=False, visible=False, elem_classes="sp-wide") for _ in range(3)]
        theme_name = gr.Textbox("light", visible=False)
        self.run.click(self.go, [drafter, target, theme_name], [*self.outputs, *self.plots], js=LOOK, **QUIET)

    def go(self, drafter: str | None, target: str | None, theme_name: str, request: gr.Request) -> Iterator[Updates]:
        """Inspect the selected drafter."""
        steps = inspecting(self.shared, self.shared.presence.caller(request), drafter, target)
        yield from self.merged(self.running(steps, "dark" if theme_name == "dark" else "light"))

    def running(self, steps: Iterator[str | Report], theme_name: str) -> Iterator[Updates]:
        """Yield the updates of an inspection: progress, then the report with figures. ``theme_name``: theme of the figures."""
        yield self.busy(True)
        try:
            for step in steps:
                if isinstance(step, str):
                    yield self.say(step or "Waiting for the engine", note=True)
                    continue
                figures = [gr.Plot(fluid(figure), visible=True) for figure in step.figures(theme_name).values()]
                html = f'<p class="sp-won" role="status"><b>{markup(step.advice)}</b></p><pre>{markup(step.as_text())}</pre>'
                yield {self.report: html} | dict(zip(self.plots, figures, strict=False))
            yield self.busy(False) | self.say("")
        except SpecvizError as error:
            yield self.busy(False) | self.say(error)
