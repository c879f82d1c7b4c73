"""Common layout of a run's tab: controls at the left, the stage at the right. Each modality adds its own controls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import gradio as gr

from specviz.errors import BadInput, SpecvizError
from specviz.methods.registry import all_methods
from specviz.pipeline.request import Request
from specviz.trace.schema import Run
from specviz.ui import browser_state, theme
from specviz.ui.app_state import AppState
from specviz.ui.browser_state import Kept, overlaid
from specviz.ui.run_lookup import MINE, grouped, title
from specviz.ui.stream import sse
from specviz.ui.tabs import request_form, text_run
from specviz.ui.tabs.request_form import FormState
from specviz.ui.tabs.text_run import QUIET, Change, merge_updates
from specviz.ui.widgets import choice, controls, panels
from specviz.ui.widgets.controls import FormValues, merge_edits
from specviz.ui.widgets.figures import Figures
from specviz.ui.widgets.gallery import Recording
from specviz.viewer.component import Race, Stage

Runs = list[tuple[str, str]]
Updates = dict[Any, Any]
IDEA = (
    "<b>Speculative decoding</b>: a drafter guesses a tree of tokens; "
    "one pass of the model checks it and keeps what it agrees with."
)


@dataclass
class RunTab:
    """Components of the tab; :meth:`updates` applies a :class:`Change` to them."""

    modality: ClassVar[str]
    prefix: ClassVar[str]
    """Prefix of the tab's element ids."""
    verb: ClassVar[tuple[str, str]] = ("Run live", "Running")
    idea: ClassVar[str] = IDEA
    """Sentence above the stage that explains it."""
    kept: ClassVar[tuple[str, ...]] = browser_state.NAMES
    """Names of the controls that outlive a reload of the page."""

    shared: AppState
    run_name: gr.State
    runs: gr.State
    recording: gr.HTML
    stage: gr.HTML
    banner: gr.HTML
    run: gr.Button
    stop: gr.Button
    why: gr.HTML
    hardware: gr.HTML
    """Device that runs compute on, filled when the page has been opened."""
    method: gr.HTML
    summary: gr.HTML
    own: gr.HTML
    target: gr.Dropdown
    prompt: gr.Textbox
    basics: gr.HTML
    advanced: gr.HTML
    given: gr.State
    """Values that the tab itself put into the prompt and the forms, a :class:`FormValues`."""
    figures: Figures
    """The whole account of the speed-up, in a fold under the stage."""
    stage_filled: gr.State
    """Whether the stage has received a run; except in the first tab, it stays empty until the tab is opened."""

    @property
    def outputs(self) -> list[Any]:
        """Components that a change may update."""
        return [
            self.stage, self.run_name, self.runs, self.recording, self.banner, self.run, self.stop, self.why, self.method,
            self.summary, self.own, self.prompt, self.basics, self.advanced, self.given, self.stage_filled, self.target,
        ]  # fmt: skip

    @property
    def request_controls(self) -> list[Any]:
        """The controls in the order of :meth:`ask`."""
        return [self.method, self.target, self.prompt, self.basics, self.advanced, self.own]

    @staticmethod
    def ask(*control_values: Any) -> FormState:
        """Return the current values of the controls."""
        return FormState(*control_values)

    def request(self, *control_values: Any) -> Request:
        """Build the request from the controls. Raises BadInput."""
        return request_form.request(self.ask(*control_values), self.shared.settings)

    def forms(self, run: Run | None = None) -> tuple[str, str]:
        """Basic and advanced form with a run's settings, or with the defaults."""
        return request_form.forms(self.shared.settings, run)

    def take_over(self, run: Run, run_name: str) -> Updates:
        """Set the controls to a run's settings, so that running live repeats it.

        The settings of this session's runs were the visitor's own choice and still count as such.
        """
        asked = FormValues(run.prompt, *self.forms(run))
        given = {} if run_name.startswith(MINE) else {self.given: asked}
        own = self.of_method(run.method, dict(run.parameters), self.shared.archive.note(run_name))
        return own | self.filled(asked) | given | {self.method: run.method} | self.on_target(run.target)

    def on_target(self, target: str) -> Updates:
        """Select this target, if its control accepts it."""
        known = [value for _, value in self.target.choices]
        return {self.target: target} if target in known or self.shared.settings.any_model else {}

    def restore(self, part: Kept) -> Updates:
        """Return the updates that restore a page's kept controls; empty if their values are invalid."""
        form = part.form(self.kept)
        method = form.get("method", "")
        if method not in all_methods() or self.modality not in all_methods()[method].modality:
            return {}
        own = controls.method_answer(method)
        try:
            forms = [overlaid(offered, form[name]) for name, offered in zip(("basics", "advanced"), self.forms(), strict=True)]
            values = json.loads(overlaid(own, form["own"]))["values"]
        except BadInput:
            return {}
        updates = self.of_method(method, values) | self.filled(FormValues(form["prompt"], *forms)) | {self.method: method}
        return updates | self.on_target(form["target"])

    def filled(self, values: FormValues) -> Updates:
        """Updates that put these values into their controls."""
        return {self.prompt: values.prompt, self.basics: values.basics, self.advanced: values.advanced}

    def of_method(self, name: str, values: dict[str, Any] | None = None, note: str = "") -> Updates:
        """Updates that depend on the method alone."""
        return {self.summary: panels.summary(name, note), self.own: controls.method_answer(name, values)}

    def knows(self, run: Run) -> bool:
        """Whether the controls can take over a run's settings: an uploaded run may be of an unknown method."""
        return run.method in all_methods() and self.modality in all_methods()[run.method].modality

    def updates(self, change: Change, runs: Runs) -> Updates:
        """Return a change as Gradio updates of the components that differ. A kept run is appended to ``runs``."""
        updates: Updates = {}
        if change.feed is not None:
            updates |= {self.stage: change.feed, self.stage_filled: True}
        if change.run_name is not None:
            updates[self.run_name] = change.run_name
            if change.joins_session and change.trace is not None and all(name != change.run_name for _, name in runs):
                runs.append((title(change.trace), change.run_name))
                updates[self.runs] = runs
            updates[self.recording] = choice.listed(grouped(self.shared.archive, runs, self.modality), change.run_name)
        if change.banner is not None:
            updates[self.banner] = banner_html(change.banner, change.note)
        if change.running is not None:
            updates[self.run] = gr.Button(self.verb[change.running])
            updates[self.stop] = panels.stop_button(change.running)
        if change.trace is not None:
            updates[self.why] = panels.why(change.trace, change.timing, panels.more(self.prefix))
        if change.settings_run is not None and self.knows(change.settings_run):
            updates |= self.take_over(change.settings_run, change.run_name or "")
        return updates

    @property
    def filling(self) -> list[Any]:
        """Components filled when the tab is opened."""
        return [self.stage_filled, self.stage]

    def fill(self, request: gr.Request, filled: bool, run_name: str, *_: Any) -> Updates:
        """Fill an opened tab that shows no run yet, with the run that the page's address names, even while that is loading, or
        with the tab's own."""
        recordings = self.shared.archive.gallery.recordings
        addressed = recordings.get(request.query_params.get("trace", ""))
        name = addressed.name if addressed and addressed.run.modality == self.modality else run_name
        return {self.stage_filled: True} if filled else {self.stage_filled: True, self.stage: self.shared.archive.feed(name)}

    @property
    def filled_from(self) -> list[Any]:
        """Further inputs of :meth:`fill`."""
        return []

    @property
    def own_choices(self) -> list[Any]:
        """Controls besides prompt and forms whose values a choice of another method must respect."""
        return []

    def apply_limits(self, updates: Updates, method: str, *own_choices: Any) -> Updates:
        """Return the updates of choosing ``method``, without those to the visitor's choices in :attr:`own_choices`."""
        return {component: value for component, value in updates.items() if component is not self.target}

    async def play_chosen(self, listed: str, runs: Runs, request: gr.Request) -> Updates:
        """Show the run that was chosen in the list."""
        name, owner = choice.chosen(listed), self.shared.presence.address_of(request)
        return await self.shared.archive.of([name], lambda: self.play(name, runs, request), owner)

    def play(self, name: str, runs: Runs, request: gr.Request) -> Updates:
        """Show the run called ``name``."""
        return self.updates(text_run.recording(self.shared, request.session_hash, name), list(runs))

    def choose_method(
        self, method: str, runs: Runs, given: FormValues, prompt: str, basics: str, advanced: str, request: gr.Request,
        *own_choices: Any,
    ) -> Updates:  # fmt: skip
        """Show a method's recorded run, if there is one, and fill the form with the method's own values.

        The visitor's edits stay, and so does a live run, whose steps are on the stage.
        """
        try:
            recording = self.shared.archive.gallery.of_method(method, self.modality)
            run = recording.run if recording else None
            offered = FormValues(run.prompt if run else given.prompt, *self.forms(run))
            values, remembered = merge_edits(given, FormValues(prompt, basics, advanced), offered)
            if recording is None:
                updates = self.of_method(method) | {self.summary: panels.summary(method) + panels.UNRECORDED}
            elif (page := self.shared.pages.find(request.session_hash)) and page.running:
                updates = self.of_method(recording.run.method, dict(recording.run.parameters), recording.watch)
            else:
                updates = self.play(recording.name, runs, request)
        except SpecvizError as error:
            return self.of_method(method) | {self.banner: banner_html(str(error))}
        return self.apply_limits(updates, method, *own_choices) | self.filled(values) | {self.given: remembered}

    def go(self, run_name: str, runs: Runs, request: gr.Request, *control_values: Any) -> Iterator[Updates]:
        """Run the request in the controls."""
        session_runs = list(runs)
        changes = text_run.running(
            self.shared, self.shared.presence.caller(request), run_name, lambda: self.request(*control_values)
        )
        with closing(changes):
            for updates in merge_updates(self.updates(change, session_runs) for change in changes):
                if text_run.stopping(self.shared, request.session_hash):  # each answer holds the whole button
                    updates = updates | {self.stop: panels.stop_button(stopping=True)}
                yield updates or {self.stage: gr.skip()}

    def wire(self, tab_page: gr.Tab | None = None) -> tuple[Any, Any, Any]:
        """Connect the common controls; return the events of a chosen recording, a chosen method and a started run.

        ``tab_page`` is filled when it is opened; the tab that the page opens with has its run from the start.
        """
        if tab_page is not None:
            tab_page.select(self.fill, [self.stage_filled, self.run_name, *self.filled_from], self.filling, **QUIET)
        played = self.recording.input(self.play_chosen, [self.recording, self.runs], self.outputs, **QUIET)
        started = [self.run.click, self.prompt.submit]
        ran = gr.on(started, self.go, [self.run_name, self.runs, *self.request_controls], self.outputs, **QUIET)
        text_run.wire_stop(self.shared, self.stop)
        # Arrow keys in a closed drop-down choose one method after the other: the last one counts.
        values = [self.given, self.prompt, self.basics, self.advanced, *self.own_choices]
        chosen = self.method.input(
            self.choose_method, [self.method, self.runs, *values], self.outputs, trigger_mode="always_last", **QUIET
        )
        controls_kept = [getattr(self, name) for name in self.kept]
        changes = [component.change for component in controls_kept]
        gr.on(changes, None, controls_kept, None, js=browser_state.remember(self.prefix), queue=False, **QUIET)
        for event in (played, chosen, ran):
            self.figures.on(event.then, self.shared, self.run_name)
        return played, chosen, ran


def banner_html(message: str, note: bool = False) -> gr.HTML:
    """The banner with this message, hidden without one."""
    return gr.HTML(panels.banner(message, "note" if note else "error"), visible=bool(message))


def method_controls(
    tab: type[RunTab], method: str, note: str, targets: list[tuple[str, str]], target: str, own: bool
) -> dict[str, Any]:
    """Controls of method and target. ``note`` describes the recorded run; ``own`` allows a visitor to name another target."""
    return {
        "method": choice.choice(choice.methods(tab.modality), method, "Method", elem_id=f"{tab.prefix}-method"),
        "summary": theme.html(panels.summary(method, note)),
        "target": gr.Dropdown(targets, value=target, label="Target", allow_custom_value=own, elem_id=f"{tab.prefix}-target"),
    }


def form_controls(tab: type[RunTab], forms: tuple[str, str], method: str, first: Run | None = None) -> dict[str, Any]:
    """The basic form, the method's own form with the ``first`` run's parameters, and the advanced form, folded."""
    own = controls.method_answer(method, dict(first.parameters) if first else None)
    basics, advanced = forms
    components = {
        name: controls.form(value, elem_id=f"{tab.prefix}-{name}") for name, value in (("basics", basics), ("own", own))
    }
    with gr.Accordion("Advanced", open=False, elem_classes="sp-fold"):
        return components | {"advanced": controls.form(advanced, elem_id=f"{tab.prefix}-advanced")}


def layout(
    tab: type[RunTab],
    shared: AppState,
    first: Recording | None,
    run_name: gr.State,
    make_controls: Callable[[], dict[str, Any]],
    filled: bool = False,
) -> dict[str, Any]:
    """Lay a tab out. ``make_controls`` makes its controls; ``filled`` sends its run with the page."""
    name = first.name if first else ""
    parts: dict[str, Any] = {"stage_filled": gr.State(filled)}
    # The choice of the stage's run, in the header's free corner: recorded runs, and this session's.
    parts["recording"] = choice.listing(
        grouped(shared.archive, [], tab.modality), name, "Showing", elem_id=f"{tab.prefix}-recording", elem_classes="sp-top"
    )
    with gr.Row(elem_classes="sp-room"):
        with gr.Column(elem_classes="sp-side", scale=0, min_width=0):
            with gr.Column(elem_classes="sp-scroll", min_width=0):
                parts |= make_controls()
                parts["given"] = gr.State(FormValues(*(parts[name].value for name in ("prompt", "basics", "advanced"))))
            with gr.Column(elem_classes="sp-foot", min_width=0):
                with gr.Row(elem_classes="sp-go"):
                    look: dict[str, Any] = {"size": "lg", "min_width": 0}
                    parts["run"] = gr.Button(tab.verb[0], variant="primary", elem_id=f"{tab.prefix}-run-live", **look)
                    parts["stop"] = gr.Button("Stop", visible=False, elem_classes="sp-stop", **look)
                parts["hardware"] = theme.html(panels.hardware("Looking for a GPU…"), elem_classes="sp-hardware")
                parts["why"] = theme.html(panels.why(first.trace if first else None, False, panels.more(tab.prefix)))
        with gr.Column(elem_classes="sp-main", min_width=0):
            with gr.Column(elem_classes="sp-front", min_width=0):
                parts["banner"] = theme.html("", visible=False)
                Race(f"#{tab.prefix}-stage", name="run", sentence=tab.idea, elem_classes="sp-race-box")
                parts["stage"] = Stage(
                    shared.archive.feed(name) if filled else "", elem_id=f"{tab.prefix}-stage", elem_classes="sp-stage",
                    tail=sse.PATH, with_script=False,
                )  # fmt: skip
            parts["figures"] = Figures.build(shared, run_name, tab.prefix)
    return parts
