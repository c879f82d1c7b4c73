"""The Traces tab: open a trace file, see its content, save any run in any format, send it to the stage; inspect a drafter."""

from __future__ import annotations

import gradio as gr

from specviz.errors import SpecvizError
from specviz.trace.store import Outline
from specviz.ui import theme
from specviz.ui.app_state import AppState
from specviz.ui.archive import choices
from specviz.ui.deep_links import RunTabs
from specviz.ui.tabs import inspect_section
from specviz.ui.tabs.events import QUIET, TabParts, Updates
from specviz.ui.tabs.run_tab import Runs, RunTab
from specviz.ui.widgets import downloads, panels
from specviz.viewer.pair import number

_HEAD = """<h2>Traces</h2><p>A run is a file: one line for what was asked, one for each step, one for how it ended.
Any engine can write one; the format is in <code>specviz/trace/trace.schema.json</code>, and
<code>python -m specviz validate FILE</code> checks it. What you open here is read into memory,
under a key that only this page knows; the uploaded file is deleted within twenty minutes, or when the app ends.</p>"""


class TracesTab(TabParts):
    """The tab. Its handlers return Gradio updates by component."""

    def __init__(self, shared: AppState, tab_page: gr.Tab, text: RunTab, run_tabs: RunTabs) -> None:
        """Lay the tab out and connect it. It opens with the run on the stage of the ``text`` tab; ``run_tabs`` play a run."""
        self.shared, self.runs, archive = shared, text.runs, shared.archive
        name = archive.gallery.default.name if archive.gallery.default else ""
        with gr.Column(elem_classes="sp-page"):
            theme.html(_HEAD)
            self.banner = theme.html("", visible=False)
            with gr.Row(elem_classes="sp-two"):
                with gr.Column(min_width=300):
                    self.run = gr.Dropdown(choices(archive, []), value=name or None, label="Run", elem_id="sp-run")
                    self.facts = theme.html(facts(archive.outline(name)) if name else "")
                    show = gr.Button("Show on the stage", variant="primary", size="md")
                with gr.Column(min_width=300):
                    theme.html("<h3>Save this run as</h3>")
                    self.downloads = downloads.buttons(name, elem_id="sp-downloads")
                    theme.html("<h3>Open a trace file</h3>")
                    self.upload = gr.UploadButton(
                        "Choose a .spectrace.jsonl file", file_types=[".jsonl"], elem_id="sp-upload", size="md"
                    )
            inspect_section.build(shared)
        tab_page.select(self.enter, [text.run_name, self.runs], self.outputs, **QUIET)
        self.run.input(self.enter, [self.run, self.runs], self.outputs, **QUIET)
        self.upload.upload(self.take, [self.upload, self.runs, self.run], self.outputs, **QUIET)
        show.click(run_tabs.play, [self.run, *run_tabs.runs], run_tabs.outputs, **QUIET)

    async def enter(self, name: str | None, session_runs: Runs, request: gr.Request, message: str = "") -> Updates:
        """Show a run's facts, offer its files, and show the ``message`` in the banner."""
        name = name or ""

        def shown() -> Updates:
            try:
                return {self.facts: facts(self.shared.archive.outline(name)) if name else "", self.downloads: name}
            except SpecvizError as error:
                return {self.facts: "", self.downloads: ""} | self.say(error)

        updates = await self.shared.read([name], shown, request)
        listed = gr.Dropdown(choices(self.shared.archive, session_runs), value=updates[self.downloads] or None)
        return {self.run: listed} | self.say(message) | updates

    async def take(self, path: str | None, session_runs: Runs, now: str, request: gr.Request) -> Updates:
        """Open an upload without holding one of the threads that serve other visitors."""
        name, message = now, ""
        try:
            if path is not None:
                opened = await self.shared.archive.open(path, self.shared.presence.address_of(request))
                name = opened.name
                if all(name != session_run for _, session_run in session_runs):
                    session_runs = [*session_runs, (f"opened: {opened.title}", name)]
        except SpecvizError as error:
            message = f"That file was not opened. {error}"
        return await self.enter(name, session_runs, request, message) | {self.runs: session_runs, self.upload: None}


def facts(outline: Outline) -> str:
    """HTML table of a run's settings and results."""
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
        "speed": f"{rate:.1f} tokens a second" + (f", {speed:.2f}× the autoregressive run" if speed else "") if rate else "",
        "on": ", ".join(part for part in (run.machine, run.device, run.dtype, run.tier) if part),
        "ended": (end.reason + (f": {end.message}" if end.message else "")) if end else "never: the file stops in the middle",
        "recorded": run.recorded_at,
        "prompt": run.prompt[:400] + ("…" if len(run.prompt) > 400 else ""),
    }
    return panels.facts({name: panels.markup(value) for name, value in rows.items()})
