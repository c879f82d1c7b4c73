"""The Text tab: controls at the left, the stage at the right, why it was faster below; the doing is in text_run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.methods.registry import all_methods
from specviz.trace.schema import Run, Trace
from specviz.ui import asking, choice, controls, panels, tail, text_run, theme
from specviz.ui.asking import Asked
from specviz.ui.figures import Figures
from specviz.ui.gathered import gathered
from specviz.ui.picker import chosen, picker
from specviz.ui.shared import Shared
from specviz.ui.shown import choices, title
from specviz.ui.text_run import Change
from specviz.viewer.component import Stage


@dataclass
class TextTab:
    """The components other code needs, and how a :class:`Change` reaches them."""

    shared: Shared
    stage: gr.HTML
    shown: gr.State
    runs: gr.State
    recording: gr.Dropdown
    banner: gr.HTML
    run: gr.Button
    stop: gr.Button
    why: gr.HTML
    method: gr.HTML
    summary: gr.HTML
    own: gr.HTML
    target: gr.Dropdown
    draft: gr.Dropdown
    prompt: gr.Textbox
    examples: gr.HTML
    basics: gr.HTML
    advanced: gr.HTML
    figures: Figures

    @property
    def outputs(self) -> list[Any]:
        """Everything a change may touch."""
        return [
            self.stage,
            self.shown,
            self.runs,
            self.banner,
            self.run,
            self.stop,
            self.why,
            self.method,
            self.summary,
            self.own,
            self.draft,
            self.prompt,
            self.basics,
            self.advanced,
            self.recording,
        ]

    @property
    def asked(self) -> list[Any]:
        """The controls in the order of :class:`Asked`."""
        return [self.method, self.target, self.draft, self.prompt, self.basics, self.advanced, self.own]

    def updates(self, change: Change, runs: list[tuple[str, str]]) -> dict[Any, Any]:
        """The change as Gradio wants it: only the components that differ. A run that is kept joins ``runs`` itself."""
        made: dict[Any, Any] = {}
        if change.feed is not None:
            made[self.stage] = change.feed
        if change.shown is not None:
            made[self.shown] = change.shown
            if change.kept and change.trace is not None and all(name != change.shown for _, name in runs):
                runs.append((title(change.trace), change.shown))
                made[self.runs] = runs
            made[self.recording] = gr.Dropdown(choices(self.shared.library, runs, "text"), value=change.shown or None)
        if change.banner is not None:
            made[self.banner] = gr.HTML(
                panels.banner(change.banner, "note" if change.note else "error"), visible=bool(change.banner)
            )
        if change.running is not None:
            made[self.run] = gr.Button("Running" if change.running else "Run live")
            made[self.stop] = gr.Button(visible=change.running)
            if change.running:
                made[self.why] = panels.why(None)
        if change.trace is not None:
            made[self.why] = panels.why(change.trace, change.timing)
        if change.asked is not None and text_run.known(change.asked):
            made |= self.take_over(change)
        return made

    def player(self) -> Any:
        """A handler that plays the run it is given by name."""

        def play(name: str, runs: list[tuple[str, str]], request: gr.Request) -> dict[Any, Any]:
            return self.updates(text_run.recording(self.shared, request.session_hash, name), list(runs))

        return play

    def take_over(self, change: Change) -> dict[Any, Any]:
        """Set the controls to what a recorded run was asked, so that Run live does the same again."""
        run = change.asked
        assert run is not None
        return self.of_method(run.method, dict(run.parameters), self.shared.library.note(change.shown or "")) | {
            self.method: run.method,
            self.prompt: run.prompt,
            self.basics: asking.basics(self.shared.settings, run),
            self.advanced: asking.advanced(self.shared.settings, run),
        }

    def of_method(self, name: str, values: dict[str, Any] | None = None, note: str = "") -> dict[Any, Any]:
        """What depends on the method alone."""
        needs = all_methods()[name].needs_draft
        return {
            self.summary: panels.summary(name, note),
            self.own: controls.method_answer(name, values),
            self.draft: gr.Dropdown(visible=needs),
        }


def build(shared: Shared, shown: gr.State, runs: gr.State) -> TextTab:
    """Lay the tab out and connect it."""
    top = _recordings(shared)
    with gr.Row(elem_classes="sp-room"):
        with gr.Column(elem_classes="sp-side", scale=0, min_width=0):
            with gr.Column(elem_classes="sp-scroll", min_width=0):
                parts = _controls(shared)
            with gr.Column(elem_classes="sp-foot", min_width=0):
                with gr.Row(elem_classes="sp-go"):
                    parts["run"] = gr.Button(
                        "Run live", variant="primary", size="lg", min_width=0, elem_id="sp-run-live"
                    )
                    parts["stop"] = gr.Button("Stop", size="lg", min_width=0, visible=False, elem_classes="sp-stop")
                parts["why"] = theme.html(panels.why(_first(shared)))
        with gr.Column(elem_classes="sp-main", min_width=0):
            with gr.Column(elem_classes="sp-front", min_width=0):
                parts["banner"] = theme.html("", visible=False)
                default = shared.library.gallery.default
                feed = shared.library.feed(default.name) if default else ""
                parts["stage"] = Stage(
                    feed, elem_id="sp-stage", elem_classes="sp-stage", lines=shared.library.store.lines, tail=tail.PATH
                )
            figures = Figures.build(shared, shown)
    tab = TextTab(shared, shown=shown, runs=runs, figures=figures, recording=top, **parts)
    _wire(tab)
    return tab


def arrive(tab: TextTab) -> Any:
    """A handler for the page's opening: a link may name another recorded run than the first one."""

    def arrived(runs: list[tuple[str, str]], request: gr.Request) -> Any:
        name = request.query_params.get("trace", "")
        default = tab.shared.library.gallery.default
        if not name or (default and name == default.name):
            return {tab.shown: default.name if default else ""}
        return tab.updates(text_run.recording(tab.shared, request.session_hash, name), list(runs))

    return arrived


def _recordings(shared: Shared) -> gr.Dropdown:
    """What the stage shows, in the header's free corner: recorded runs, and this session's as they come."""
    gallery = shared.library.gallery
    return gr.Dropdown(
        choices(shared.library, [], "text"),
        value=gallery.default.name if gallery.default else None,
        label="Showing",
        elem_id="sp-recording",
        elem_classes="sp-top",
        min_width=0,
    )


def _first(shared: Shared) -> Trace | None:
    default = shared.library.gallery.default
    return default.trace if default else None


def _controls(shared: Shared) -> dict[str, Any]:
    """The controls, set to what the first recorded run was asked."""
    settings, gallery = shared.settings, shared.library.gallery
    first = gallery.default.run if gallery.default else None
    method = first.method if first else "prompt_lookup"
    return {
        "method": choice.choice(choice.methods(), method, "Method", elem_id="sp-method"),
        "summary": theme.html(panels.summary(method, gallery.default.note if gallery.default else "")),
        "target": gr.Dropdown(
            asking.models("target", settings.target),
            value=settings.target,
            label="Target",
            allow_custom_value=settings.any_model,
            elem_id="sp-target",
        ),
        "draft": gr.Dropdown(
            [("The small one that ships", asking.OWN_DRAFT), *asking.models("draft")],
            value=asking.OWN_DRAFT,
            label="Draft model",
            allow_custom_value=settings.any_model,
            visible=all_methods()[method].needs_draft,
            elem_id="sp-draft",
        ),
        "prompt": gr.Textbox(first.prompt if first else "", label="Prompt", lines=3, max_lines=6, elem_id="sp-prompt"),
        "examples": picker(),
        **_forms(shared, method, first),
    }


def _forms(shared: Shared, method: str, first: Run | None) -> dict[str, Any]:
    made = {
        "basics": controls.form(asking.basics(shared.settings, first), elem_id="sp-basics"),
        "own": controls.form(
            controls.method_answer(method, dict(first.parameters) if first else None), elem_id="sp-own"
        ),
    }
    with gr.Accordion("Advanced", open=False, elem_classes="sp-fold"):
        made["advanced"] = controls.form(asking.advanced(shared.settings, first), elem_id="sp-advanced")
    return made


def _wire(tab: TextTab) -> None:
    shared = tab.shared
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}

    def go(shown: str, runs: list[tuple[str, str]], request: gr.Request, *asked: Any) -> Iterator[dict[Any, Any]]:
        mine = list(runs)
        with closing(text_run.live(shared, request.session_hash, shown, Asked(*asked))) as changes:
            yield from gathered(tab.updates(change, mine) for change in changes)

    def halt(request: gr.Request) -> None:
        text_run.stop(shared, request.session_hash)

    played = tab.recording.input(tab.player(), [tab.recording, tab.runs], tab.outputs, **quiet)
    started = [tab.run.click, tab.prompt.submit]
    ran = gr.on(started, go, [tab.shown, tab.runs, *tab.asked], tab.outputs, **quiet)
    for event in (played, ran):
        tab.figures.on(event.then, shared, tab.shown)
    tab.stop.click(halt, None, None, queue=False, show_progress="hidden", api_visibility="private")
    tab.examples.choose(chosen, tab.basics, [tab.prompt, tab.basics], queue=False, **quiet)
    tab.method.input(tab.of_method, tab.method, [tab.summary, tab.own, tab.draft], queue=False, **quiet)
