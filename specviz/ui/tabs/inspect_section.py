"""Inspection of a drafter on the page: its facts, whether its conventions are read right, and what other readings would gain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.engine.stop import computing
from specviz.errors import BadInput, SpecvizError
from specviz.figures.theme import markup
from specviz.inspection import OWN, PROMPTS
from specviz.methods.registry import get
from specviz.ui import theme
from specviz.ui.access import Caller
from specviz.ui.app_state import AppState
from specviz.ui.stream.engine import COMPUTING, Progress
from specviz.ui.tabs import events, request_form
from specviz.ui.widgets import panels
from specviz.ui.widgets.figures import fluid

if TYPE_CHECKING:
    from specviz.inspection.report import Report

TOKENS, DEPTH = 64, 5
"""Maximum number of tokens per answer, and drafted tokens per chain; the command's own defaults."""
PLOTS = 3
_HEAD = """<h2>Inspect a drafter</h2><p>A drafter loaded with other conventions than it was trained with runs without an
error and drafts badly. Here the target answers four prompts, and the drafter is teacher-forced along the answers, as it was
loaded and under every other reading. <code>python -m specviz inspect</code> does the same.</p>"""
_LOOK = "(...values) => [...values.slice(0, -1), document.body.classList.contains('dark') ? 'dark' : 'light']"


def inspected(drafter: str, target: str, progress: Progress) -> Report:
    """Inspect a drafter and return the report; the first call loads torch."""
    progress("Starting the engine", None)
    with computing(COMPUTING, progress):
        from specviz.inspection.report import inspect

        return inspect(drafter, target, PROMPTS, TOKENS, DEPTH, True, progress)


def inspecting(shared: AppState, caller: Caller, drafter: str | None, target: str | None) -> Iterator[str | Report]:
    """Yield progress sentences, then the report, unless this page began something else. Waits its turn among the runs.

    Raises SpecvizError with one sentence when there is no report.
    """
    name, any_model = drafter.strip() if isinstance(drafter, str) else "", shared.settings.any_model
    if not name or len(name) > 300 or (name not in OWN and not any_model):
        raise BadInput(f"Choose an included drafter: {', '.join(OWN)}" + (", or name a folder or hub id." * any_model or "."))
    on = request_form.model(target, shared.settings)
    request_form.check_room(on, name)
    page, reports = shared.pages.enter(caller.session, caller.address), list[Any]()

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


def report_html(report: Report) -> str:
    """The report as HTML: the advice, acceptance by depth of every reading, the drafter's facts."""
    loaded = report.verdict.loaded
    depths = "".join(f"<th scope=col>depth {depth + 1}</th>" for depth in range(loaded.depth))
    rows = [_row("as loaded", loaded, f"{loaded.accepted:.2f}")]
    for number, compared in enumerate(report.verdict.rounds):
        before = "".join(f"{one.other.name}, then " for one in report.verdict.steps[:number])
        for one in compared if not number else compared[:3]:
            gain = f"{one.gain:+.2f} ± {one.error:.2f}" + " better" * one.clearly_better
            rows.append(_row(f"with {before}{one.other.name}", one.foresight, gain))
    head = f"<thead><tr><th scope=col>read</th>{depths}<th scope=col>accepted per chain</th></tr></thead>"
    lines = [line.strip().partition(": ") for line in report.summary[1:]]
    facts = panels.facts({markup(a if b else "file" if "sha256" in a else "network"): markup(b or a) for a, _, b in lines})
    return (
        f'<p class="sp-won" role="status"><b>{markup(report.advice)}</b></p>'
        f'<div class="sp-versus"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'
        f"<p>Teacher-forced from {loaded.places} positions in the target's own greedy answers; each depth counts the positions "
        f"whose shallower drafts were right. At temperature 1 the first would pass at a rate of {loaded.overlap_rate:.2f}.</p>"
        f"<h3>{markup(report.summary[0])}</h3>{facts}"
    )


def _row(name: str, foresight: Any, last: str) -> str:
    rates = "".join(f"<td>{'–' if rate is None else f'{rate:.2f}'}</td>" for rate in foresight.rates)
    return f"<tr><th scope=row>{markup(name)}</th>{rates}<td>{last}</td></tr>"


def build(shared: AppState) -> None:
    """Lay the section out and connect it; omitted on a ZeroGPU Space, where models run in another process."""
    settings = shared.settings
    if settings.zero_gpu:
        return
    theme.html(_HEAD)
    with gr.Row():
        drafter = gr.Dropdown(
            [(get(name).title, name) for name in OWN], value="eagle3", allow_custom_value=settings.any_model,
            label="Drafter" + ", or a folder or hub id" * settings.any_model, elem_id="sp-drafter", min_width=260,
        )  # fmt: skip
        target = gr.Dropdown(
            request_form.models("target", settings, own=settings.target), value=settings.target, label="Target",
            allow_custom_value=settings.any_model, min_width=260,
        )  # fmt: skip
    go, stop = events.run_buttons(shared, "Inspect", size="md")
    banner, answer = theme.html("", visible=False), theme.html("", elem_id="sp-inspected")
    plots = [gr.Plot(show_label=False, visible=False, elem_classes="sp-wide") for _ in range(PLOTS)]
    look = gr.Textbox("light", visible=False)

    def look_at(drafter_value: str, target_value: str, look: str, request: gr.Request) -> Iterator[dict[Any, Any]]:
        end: dict[Any, Any] = {stop: panels.stop_button(False), banner: panels.banner("")}
        began: dict[Any, Any] = {stop: panels.stop_button()}
        try:
            for step in inspecting(shared, shared.presence.caller(request), drafter_value, target_value):
                if isinstance(step, str):
                    yield {banner: panels.banner(step or "Waiting for the engine", note=True)} | began
                    began = {}
                    continue
                figures = step.figures("dark" if look == "dark" else "light").values()
                shown = [gr.Plot(fluid(figure), visible=True) for figure in figures]
                shown += [gr.Plot(visible=False)] * (PLOTS - len(shown))
                end |= {answer: report_html(step)} | dict(zip(plots, shown, strict=True))
        except SpecvizError as error:
            end[banner] = panels.banner(str(error))
        yield end

    go.click(look_at, [drafter, target, look], [banner, answer, stop, *plots], js=_LOOK, **events.QUIET)
