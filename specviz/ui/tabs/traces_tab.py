"""The Traces tab: open a trace file, see its content, save any run in any format, send it to the stage; inspect a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.trace.store import Outline
from specviz.ui import theme
from specviz.ui.app_state import AppState
from specviz.ui.deep_links import RunTabs
from specviz.ui.run_lookup import choices
from specviz.ui.tabs import inspect_section
from specviz.ui.tabs.text_run import QUIET
from specviz.ui.widgets import downloads, panels

Runs = list[tuple[str, str]]


@dataclass
class TracesTab:
    """The components that other tabs connect to."""

    run: gr.Dropdown
    facts: gr.HTML
    downloads: gr.HTML
    banner: gr.HTML
    upload: gr.UploadButton
    show: gr.Button

    @property
    def outputs(self) -> list[Any]:
        """Components that choosing a run updates."""
        return [self.run, self.facts, self.downloads, self.banner]


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
        "written": f"{outline.tokens} tokens in {outline.steps} passes, τ {_number(metrics.get('tau'))}",
        "speed": f"{rate:.1f} tokens a second" + (f", {speed:.2f}× the autoregressive run" if speed else "") if rate else "",
        "on": ", ".join(part for part in (run.machine, run.device, run.dtype, run.tier) if part),
        "ended": (end.reason + (f": {end.message}" if end.message else "")) if end else "never: the file stops in the middle",
        "recorded": run.recorded_at,
        "prompt": run.prompt[:400] + ("…" if len(run.prompt) > 400 else ""),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{panels.markup(value)}</dd>" for name, value in rows.items() if value)
    return f'<dl class="sp-facts">{listed}</dl>'


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def chosen(shared: AppState, runs: Runs, name: str, message: str = "") -> list[Any]:
    """Updates of the tab for a chosen run."""
    listed = choices(shared.archive, runs)
    try:
        facts_html = facts(shared.archive.outline(name)) if name else ""
    except SpecvizError as error:
        facts_html, name, message = "", "", str(error)
    return [
        gr.Dropdown(listed, value=name or None),
        facts_html,
        name,
        gr.HTML(panels.banner(message), visible=bool(message)),
    ]


def build(shared: AppState) -> TracesTab:
    """Lay the tab out."""
    default = shared.archive.gallery.default
    name = default.name if default else ""
    with gr.Column(elem_classes="sp-page"):
        theme.html(_HEAD)
        banner = theme.html("", visible=False)
        with gr.Row(elem_classes="sp-two"):
            with gr.Column(min_width=300):
                run = gr.Dropdown(choices(shared.archive, []), value=name or None, label="Run", elem_id="sp-run")
                facts_html = theme.html(facts(shared.archive.outline(name)) if default else "")
                show = gr.Button("Show on the stage", variant="primary", size="md")
            with gr.Column(min_width=300):
                theme.html("<h3>Save this run as</h3>")
                saved = downloads.buttons(shared.archive, shared.presence, name, elem_id="sp-downloads")
                theme.html("<h3>Open a trace file</h3>")
                upload = gr.UploadButton("Choose a .spectrace.jsonl file", file_types=[".jsonl"], elem_id="sp-upload", size="md")
        inspect_section.build(shared)
    return TracesTab(run, facts_html, saved, banner, upload, show)


_HEAD = """<h2>Traces</h2><p>A run is a file: one line for what was asked, one for each step, one for how it ended.
Any engine can write one; the format is in <code>specviz/trace/trace.schema.json</code>, and
<code>python -m specviz validate FILE</code> checks it. What you open here is read into memory,
under a key that only this page knows; the uploaded file is deleted within twenty minutes, or when the app ends.</p>"""


def wire(shared: AppState, tab: TracesTab, run_name: gr.State, runs: gr.State, tab_page: gr.Tab, run_tabs: RunTabs) -> None:
    """Connect the tab; ``run_tabs`` are the tabs that play a run."""

    async def enter(name: str, session_runs: Runs, request: gr.Request) -> list[Any]:
        owner = shared.presence.address_of(request)
        return await shared.archive.of([name or ""], lambda: chosen(shared, session_runs, name), owner)

    async def take(path: str | None, session_runs: Runs, now: str, request: gr.Request) -> list[Any]:
        """Open an upload without holding one of the threads that serve other visitors."""
        name, message, owner = now, "", shared.presence.address_of(request)
        try:
            if path is not None:
                opened = await shared.uploads.open(path, owner)
                name = opened.name
                if all(name != session_run for _, session_run in session_runs):
                    session_runs = [*session_runs, (f"opened: {opened.title}", name)]
        except SpecvizError as error:
            message = f"That file was not opened. {error}"
        updates = await shared.archive.of([name or ""], lambda: chosen(shared, session_runs, name, message), owner)
        return [*updates, session_runs, None]

    tab_page.select(enter, [run_name, runs], tab.outputs, **QUIET)
    tab.run.input(enter, [tab.run, runs], tab.outputs, **QUIET)
    tab.upload.upload(take, [tab.upload, runs, tab.run], [*tab.outputs, runs, tab.upload], **QUIET)
    tab.show.click(run_tabs.play, [tab.run, *run_tabs.runs], run_tabs.outputs, **QUIET)
