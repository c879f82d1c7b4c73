"""The tabs Text, Vision-language and Image: controls on the left, the stage on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import gradio as gr

from specviz.errors import BadInput, SpecvizError
from specviz.methods.registry import all_methods, families
from specviz.models.hub.catalog import DEFAULT_VISION_TARGET
from specviz.models.hub.pairs import PAIRS
from specviz.trace.schema import Run, Trace
from specviz.ui import browser_state, theme
from specviz.ui.access import Caller
from specviz.ui.app_state import AppState
from specviz.ui.archive import MINE, OPENING, Groups, Recording, Titles, grouped, join
from specviz.ui.browser_state import Kept
from specviz.ui.stream import sse
from specviz.ui.stream.live import Frame
from specviz.ui.tabs import request_form
from specviz.ui.tabs.events import QUIET, TabParts, Updates, run_buttons
from specviz.ui.tabs.request_form import FormState
from specviz.ui.widgets import examples, panels
from specviz.ui.widgets.figures import Figures
from specviz.viewer.component import Race, Stage

Runs = Titles
IDEA = (
    "<b>Speculative decoding</b>: a drafter guesses a tree of tokens; "
    "one pass of the model checks it and keeps what it agrees with."
)

OFFER = (
    '<span class="sp-offer"><b>New here?</b><span>See how a pass writes several tokens.</span>'
    '<a href="?tab=story">The story in five minutes</a>'
    '<button type="button" aria-label="Run your own"><span>Run your own</span><i>✕</i></button></span> '
)


class RunTab(TabParts):
    """Base class of the tabs for running a method, one per modality."""

    modality: str
    prefix: str
    """Prefix of the tab's element ids."""
    default_method: str
    verb: tuple[str, str] = ("Run live", "Running")
    idea = IDEA
    """Explanation above the stage."""
    ask = "Prompt"
    """Label of the prompt."""
    lines = 2
    """Number of lines of the prompt."""
    controls: tuple[str, ...] = browser_state.NAMES
    """Names of the controls that make up the request."""
    kept = controls
    """Names of the controls whose values the browser keeps."""

    def __init__(self, shared: AppState, tab_page: gr.Tab | None = None) -> None:
        """Build the tab. ``tab_page``: the Gradio tab, whose run is sent when it is opened; None for the first tab."""
        self.shared, self.archive = shared, shared.archive
        self.default_target = request_form.DEFAULT_TARGETS.get(self.modality, shared.settings.target)
        first = self.archive.gallery.first(self.modality) if tab_page else self.archive.gallery.default
        name, prefix = first.name if first else "", self.prefix
        self.run_name, self.runs = gr.State(name), gr.State([])
        self.stage_filled = gr.State(tab_page is None)
        self.target_before = gr.State("")
        """Target selected before a method required another target; else empty."""
        self.recording = panels.drop_down(  # in the header
            grouped(self.archive, [], self.modality), name, "Showing", elem_id=f"{prefix}-recording", elem_classes="sp-top"
        )
        with gr.Row(elem_classes="sp-room"):
            with gr.Column(elem_classes="sp-main", min_width=0):  # first for keyboards and on phones; on the right elsewhere
                with gr.Column(elem_classes="sp-front", min_width=0):
                    self.banner = theme.html("", visible=False)
                    Race(f"#{prefix}-stage", name="run", sentence=self.idea, elem_classes="sp-race-box")
                    self.stage = Stage(
                        OPENING if tab_page else self.archive.feed(name), tail=sse.PATH,
                        elem_id=f"{prefix}-stage", elem_classes="sp-stage",
                    )  # fmt: skip
                self.figures = Figures(shared, self.run_name, prefix)
            with gr.Column(elem_classes="sp-side", scale=0, min_width=0):
                with gr.Column(elem_classes="sp-scroll", min_width=0):
                    self.add_controls(first)
                    self.given = gr.State(self.prompt.value)
                    """The prompt that the tab filled in."""
                with gr.Column(elem_classes="sp-foot", min_width=0):
                    self.run, self.stop = run_buttons(shared, self.verb[0], f"{prefix}-run-live", size="lg", min_width=0)
                    self.hardware = theme.html(panels.hardware("Looking for a GPU…"), elem_classes="sp-hardware")
                    self.explanation = theme.html(panels.speed_explanation(first.trace if first else None, False, prefix))
        self.wire(tab_page)

    def add_controls(self, first: Recording | None) -> None:
        """Add the controls, with the settings of the ``first`` run."""
        run = first.run if first else None
        method = run.method if run else self.default_method
        target = run.target if run and run.target in [value for _, value in self.targets()] else self.default_target
        self.add_method(method, target, first.note if first else "")
        self.add_prompt(run.prompt if run else "")
        self.examples = examples.picker(self.modality, f"{self.prefix}-examples")
        self.add_forms(method, run)

    def add_method(self, method: str, target: str, note: str = "") -> None:
        """Add the controls for method and target. ``note``: note of the recorded run."""
        any_model = self.shared.settings.any_model
        pasted = ", address of an allowed server" if self.shared.settings.servers and self.modality == "text" else ""
        self.method = panels.drop_down(methods(self.modality, any_model), method, "Method", elem_id=f"{self.prefix}-method")
        self.summary = theme.html(panels.summary(method, note))
        self.target = gr.Dropdown(
            self.targets(), value=target, label="Target", allow_custom_value=any_model, elem_id=f"{self.prefix}-target",
            info=f"Or type a hub id, folder{pasted} or .gguf file." if any_model else None,
        )  # fmt: skip
        self.draft, published = self.fitting(method, target)
        self.published = theme.html(published)

    def fitting(self, method: str, target: str, draft: str = request_form.OWN_DRAFT) -> tuple[gr.Dropdown, str]:
        """Return the drop-down of draft models for a method and target, hidden without a choice, and HTML about published heads.

        A ``draft`` that does not fit is replaced by the first that does.
        """
        settings, card = self.shared.settings, all_methods()[method]
        listed = request_form.heads(method, target, settings)
        if not listed:
            included = self.modality in card.modality
            own = request_form.models("draft", settings, self.modality) if included and card.needs_draft else []
            listed = [("The included one" if included else "None fits this target", request_form.OWN_DRAFT), *own]
        names, typed = [name for _, name in listed], card.needs_draft and settings.any_model
        if draft not in names and not (typed and "/" in draft and all(draft != pair.heads for pair in PAIRS)):
            draft = names[0]
        shown = gr.Dropdown(
            listed, value=draft, label="Draft model", elem_id=f"{self.prefix}-draft", allow_custom_value=typed,
            visible=card.needs_draft or any(names) or self.modality in card.published,
        )  # fmt: skip
        return shown, request_form.published(card, target, self.modality, settings)

    def add_prompt(self, prompt: str) -> None:
        self.prompt = gr.Textbox(
            prompt, label=self.ask, lines=self.lines, max_lines=2 * self.lines, elem_id=f"{self.prefix}-prompt"
        )  # fmt: skip

    def add_forms(self, method: str, run: Run | None = None) -> None:
        """Add the forms, with the settings of ``run``."""
        basics, advanced = self.forms(run)
        own = request_form.method_answer(method, dict(run.parameters) if run else None)
        self.basics = request_form.form(basics, elem_id=f"{self.prefix}-basics")
        self.own = request_form.form(own, elem_id=f"{self.prefix}-own")
        with gr.Accordion("Advanced", open=False, elem_classes="sp-fold"):
            self.advanced = request_form.form(advanced, elem_id=f"{self.prefix}-advanced")

    def targets(self) -> Titles:
        """Return the title and name of the targets that the tab offers."""
        return request_form.models("target", self.shared.settings, self.modality, self.default_target)

    @property
    def request_controls(self) -> list[Any]:
        """The controls in the order of :attr:`controls`."""
        return [getattr(self, name) for name in self.controls]

    def forms(self, run: Run | None = None, own: bool = False) -> tuple[str, str]:
        """Return the basic and the advanced form; see :func:`request_form.forms`."""
        return request_form.forms(self.shared.settings, run, self.modality, own)

    def take_over(self, trace: Trace, run_name: str) -> Updates:
        """Return the updates that set the controls to a run's settings.

        The settings of a run of this session count as the visitor's edits.
        """
        run, mine = trace.run, run_name.startswith(MINE)
        updates = self.of_method(run.method, dict(run.parameters), self.archive.note(run_name))
        updates |= self.filled(run.prompt, self.forms(run, mine)) | ({} if mine else {self.given: run.prompt})
        draft = {self.draft: self.fitting(run.method, run.target, run.draft)[0]}
        return updates | {self.method: run.method} | self.on_target(run.target) | draft

    def on_target(self, target: str) -> Updates:
        """Return the updates that select a target, if offered.

        If only certain methods run on the target, the default target is restored when another method is selected.
        """
        before = {self.target_before: self.default_target * any(target in method.targets for method in all_methods().values())}
        return before | ({self.target: target} if self.lists(target) or self.shared.settings.any_model else {})

    def lists(self, target: str) -> bool:
        """Return whether a target is in the list."""
        return target in [value for _, value in self.target.choices]

    def restore(self, part: Kept) -> Updates:
        """Return the updates that restore the kept control values; empty if the values are invalid."""
        form = part.values(self.kept)
        method = form.get("method", "")
        if not self.offers(method):
            return {}
        updates = self.of_method(method)
        offered = (*self.forms(), updates[self.own])
        try:
            forms = list(map(request_form.filled, offered, map(form.__getitem__, ("basics", "advanced", "own"))))
        except BadInput:
            return {}
        updates |= self.filled(form["prompt"], forms) | {self.own: forms[2], self.method: method}
        return updates | self.on_target(form["target"]) | {self.draft: self.fitting(method, form["target"], form["draft"])[0]}

    def offers(self, method: str) -> bool:
        """Return whether the tab lists a method."""
        groups = methods(self.modality, self.shared.settings.any_model).values()
        return any(method in dict(titles).values() for titles in groups)

    def filled(self, prompt: str, forms: Sequence[str]) -> Updates:
        """Return the updates of the prompt and of the basic and advanced forms."""
        return {self.prompt: prompt, self.basics: forms[0], self.advanced: forms[1]}

    def of_method(self, name: str, values: dict[str, Any] | None = None, note: str = "") -> Updates:
        """Updates that depend on the method alone."""
        return {self.summary: panels.summary(name, note), self.own: request_form.method_answer(name, values)}

    def show(self, name: str, runs: Runs, session: str | None, joins_session: bool = False) -> Updates:
        """Return the updates that show a run and set the controls to its settings.

        ``joins_session``: whether to add the run to ``runs``.
        """
        try:
            trace = self.archive.trace(name)
            if page := self.shared.pages.find(session):
                page.turn_away(self.prefix)
            updates = self.staged(self.archive.feed(name)) | self.busy(False) | self.say("")
        except SpecvizError as error:
            return self.say(error)
        updates |= self.named(name, runs, trace if joins_session else None) | self.explained(trace)
        # An uploaded run may be of an unknown method.
        return updates | (self.take_over(trace, name) if self.offers(trace.run.method) else {})

    def running(self, caller: Caller, run_name: str, runs: Runs, *control_values: Any) -> Iterator[Updates]:
        """Run the request in the controls, yield the updates, and add the run to ``runs``.

        An empty update means that the tab shows something else now.
        """
        try:
            values = dict(zip(self.controls, control_values, strict=True))
            request = request_form.request(FormState(modality=self.modality, **values), self.shared.settings)
            page = self.shared.pages.enter(caller)
            yield self.busy(True) | self.say("")
            last: Trace | None = None
            with closing(self.shared.live.run(page, request, caller)) as frames:
                for frame in frames:
                    if not page.current(frame.cancel):
                        break
                    last = frame.trace or last
                    yield self.of_frame(frame, run_name, runs)
            if not page.current(frame.cancel):
                ended = replace(frame, timing=False, failure="Stopped, because this page began something else.")
                left = self.of_frame(ended, run_name, runs) | self.busy(False)
                yield {} if page.shown_in == self.prefix else left  # Gradio sends the last update again at the end
                return
            if last:
                yield self.explained(last)
        except SpecvizError as error:
            yield self.say(self.refused(run_name, str(error)))
        yield self.busy(False)

    def of_frame(self, frame: Frame, run_name: str, runs: Runs) -> Updates:
        """Return the updates for a frame of a live run. If the run could not start, the stage shows ``run_name`` again."""
        failure, stopped = frame.failure, frame.failure.startswith("Stopped")
        if failure and not frame.begun:
            banner = self.say(failure if stopped else self.refused(run_name, failure), stopped)
            return self.staged(self.archive.feed(run_name)) | banner
        updates = self.staged(frame.feed) | (self.say(failure, stopped) if failure else {})
        if frame.begun:
            updates |= self.named(MINE + frame.key, runs, frame.trace)
        return updates | (self.explained(frame.trace, frame.timing) if frame.trace else {})

    def refused(self, run_name: str, reason: str) -> str:
        """Return an error message that adds which run the stage still shows."""
        recording = self.archive.gallery.recordings.get(run_name)
        shown = f"“{recording.title}”" if recording else "the earlier run"
        return f"{reason} The stage still shows {shown}." if run_name else reason

    def staged(self, feed: str) -> Updates:
        """Return the updates that set the value of the stage."""
        return {self.stage: feed, self.stage_filled: True}

    def named(self, name: str, runs: Runs, joins: Trace | None) -> Updates:
        """Return the updates that select a run in the list, after adding ``joins`` to ``runs`` if given."""
        updates: Updates = {self.run_name: name}
        if joins and join(runs, name, joins.run):
            updates[self.runs] = runs
        return updates | {self.recording: panels.listing(grouped(self.archive, runs, self.modality), name)}

    def explained(self, trace: Trace, timing: bool = False) -> Updates:
        """Return the update that explains a run's speed-up. ``timing``: whether the baseline is still being timed."""
        return {self.explanation: panels.speed_explanation(trace, timing, self.prefix)}

    async def fill(self, request: gr.Request, filled: bool, run_name: str) -> Updates:
        """Return the updates of opening the tab for the first time: the run named in the URL, else ``run_name``."""
        if filled:
            return {self.stage_filled: True}
        named = request.query_params.get("trace", "")
        with suppress(SpecvizError):
            if await self.archive.recall(named, self.shared.presence.address_of(request)) == self.modality:
                run_name = named
        return self.staged(self.archive.feed(run_name))

    @property
    def own_choices(self) -> list[Any]:
        """Further inputs of :meth:`choose_method`, passed to :meth:`apply_limits`."""
        return [self.target, self.target_before]

    def apply_limits(self, updates: Updates, method: str, target: str, before: str) -> Updates:
        """Return ``updates`` with the target adjusted to the method.

        If the method requires another target, the target is switched; after such a method, the target ``before`` is restored.
        """
        others = {part: value for part, value in updates.items() if part not in (self.target, self.target_before, self.draft)}
        if runs_on := all_methods()[method].targets:
            switches = self.lists(target) and target not in runs_on
            return others | ({self.target: runs_on[0], self.target_before: target} if switches else {})
        return others | {self.target: before, self.target_before: ""} if before else others

    def take(self, basics: str, event: gr.EventData) -> Updates:
        """Return the updates that take over the prompt, and possibly the temperature, of the clicked example."""
        example = examples.clicked(event, examples.prompts(self.modality))
        if not example:
            return {self.banner: gr.skip()}
        prompt, temperature = example
        if temperature is not None:
            basics = request_form.replaced(basics, "temperature", temperature)
        return {self.prompt: prompt, self.basics: basics}

    async def play_chosen(self, name: str, runs: Runs, request: gr.Request) -> Updates:
        """Return the updates that show the run selected in the list."""
        name = str(name or "")
        return await self.shared.read([name], lambda: self.show(name, list(runs), request.session_hash), request)

    def choose_method(
        self, method: str, runs: Runs, given: str, prompt: str, basics: str, advanced: str, request: gr.Request,
        *own_choices: Any,
    ) -> Updates:  # fmt: skip
        """Return the updates after a method is selected: the method's form and, if available, a recorded run.

        The visitor's edits are kept. During a live run, the stage does not change.
        """
        try:
            recording = self.archive.gallery.of_method(method, self.modality)
            run = recording.run if recording else None
            fitting = run if not run or run.target == own_choices[0] else run.replace(guidance=None)
            offered = zip(self.forms(fitting), (basics, advanced), strict=True)
            basics, advanced = (request_form.filled(*pair, edits=True) for pair in offered)
            own_prompt = prompt.strip() != given.strip()
            given = given if own_prompt or not run else run.prompt
            if not recording:
                updates = self.of_method(method) | {self.summary: panels.summary(method) + panels.UNRECORDED}
            elif (page := self.shared.pages.find(request.session_hash)) and page.running:
                updates = self.of_method(recording.run.method, dict(recording.run.parameters), recording.note)
            else:
                updates = self.show(recording.name, list(runs), request.session_hash)
        except SpecvizError as error:
            return self.of_method(method) | self.say(error)
        filled = self.filled(prompt if own_prompt else given, (basics, advanced)) | {self.given: given}
        return self.apply_limits(updates, method, *own_choices) | filled

    def go(self, run_name: str, runs: Runs, request: gr.Request, *control_values: Any) -> Iterator[Updates]:
        yield from self.merged(self.running(self.shared.presence.caller(request), run_name, list(runs), *control_values))

    def wire(self, tab_page: gr.Tab | None) -> None:
        if tab_page is not None:
            fills = [self.stage_filled, self.run_name], [self.stage_filled, self.stage]
            tab_page.select(self.fill, *fills, js=browser_state.AFTER_ARRIVAL, **QUIET)
        played = self.recording.input(self.play_chosen, [self.recording, self.runs], self.outputs, **QUIET)
        started = [self.run.click, self.prompt.submit]
        ran = gr.on(started, self.go, [self.run_name, self.runs, *self.request_controls], self.outputs, **QUIET)
        self.examples.choose(self.take, self.basics, self.outputs, queue=False, **QUIET)
        # Arrow keys in a closed drop-down select several methods in a row, of which only the last counts.
        values = [self.given, self.prompt, self.basics, self.advanced, *self.own_choices]
        chosen = self.method.input(
            self.choose_method, [self.method, self.runs, *values], self.outputs, trigger_mode="always_last", **QUIET
        )
        gr.on(
            [self.method.change, self.target.change], self.fitting, [self.method, self.target, self.draft],
            [self.draft, self.published], queue=False, **QUIET,
        )  # fmt: skip
        self.target.input(None, self.basics, self.basics, js=browser_state.DEFAULT_GUIDANCE, **QUIET)
        kept = [getattr(self, name) for name in self.kept]
        remember = browser_state.remember(self.prefix)
        gr.on([control.change for control in kept], None, kept, None, js=remember, **QUIET)
        for event in (played, chosen, ran):
            self.figures.on(event.then)


class TextTab(RunTab):
    """The Text tab, with which the page opens."""

    modality, prefix, default_method, lines = "text", "sp", "prompt_lookup", 3
    idea = f"{OFFER}<span>{IDEA}</span>"

    def targets(self) -> Titles:
        """Return the title and name of the targets, including servers."""
        return [*super().targets(), *request_form.servers(self.shared.settings)]


class ImageTab(RunTab):
    """The Image tab."""

    modality, prefix, default_method = "image", "sp-image", "mulo_sd"
    verb, ask = ("Draw live", "Drawing"), "What to draw"
    idea = IDEA.replace("a tree of tokens", "picture codes").replace("checks it", "checks them")


def methods(modality: str, published: bool = False) -> Groups:
    """Return the title and name of the methods of a modality, by family. ``published``: also those for published heads alone."""
    grouped = Groups()
    for family, group in families().items():
        for method in group:
            if modality in method.modality + method.published * published:
                title = method.title + " (published heads)" * (modality in method.published)
                grouped.setdefault(family, []).append((title, method.name))
    return grouped


LIMITS = f"{DEFAULT_VISION_TARGET} knows only emoji and plain shapes; SmolVLM2 256M, 1.0 GB from the hub, describes photographs."


class VisionTab(RunTab):
    """The Vision-language tab. ``picture`` holds the page's image file as bytes."""

    modality, prefix, default_method, ask = "vision_language", "sp-see", "hivis", "Question"
    controls = (*RunTab.controls, "picture")
    kept = (*RunTab.kept, "preview")

    def add_controls(self, first: Recording | None) -> None:
        """Add the controls, with the first example picture."""
        scene = examples.scenes()[0]
        self.picture = gr.State(scene.data)
        self.by_hand = gr.State(False)
        """Whether the visitor chose the picture; selecting a method then keeps it."""
        self.preview = theme.html(examples.preview(scene.data), elem_id="sp-see-preview")
        self.examples = examples.shelf()
        self.upload = gr.UploadButton(
            "Bring your own picture", size="sm", elem_id="sp-see-upload",
            file_types=[".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"],
        )  # fmt: skip
        theme.html(f'<p class="sp-summary">{LIMITS}</p>', elem_id="sp-see-limits")
        self.add_prompt(scene.question)
        self.add_method(self.default_method, self.default_target)
        self.add_forms(self.default_method)

    @property
    def own_choices(self) -> list[Any]:
        """The choices of :class:`RunTab`, and whether the visitor chose the picture."""
        return [*super().own_choices, self.by_hand]

    def apply_limits(self, updates: Updates, method: str, target: str, before: str, by_hand: bool = False) -> Updates:
        """Like :meth:`RunTab.apply_limits`; a picture that the visitor chose is kept."""
        mine = (self.picture, self.by_hand, self.preview) if by_hand else ()
        kept = super().apply_limits(updates, method, target, before)
        return {part: value for part, value in kept.items() if part not in mine}

    def take_over(self, trace: Trace, run_name: str) -> Updates:
        """Like :meth:`RunTab.take_over`, including the picture."""
        updates, picture = super().take_over(trace, run_name), examples.of_run(trace)
        return updates if picture is None else updates | self.chosen(picture, by_hand=run_name.startswith(MINE))

    def restore(self, part: Kept) -> Updates:
        """Like :meth:`RunTab.restore`, including the picture."""
        updates = super().restore(part)
        picture = examples.of_preview(part.values(self.kept).get("preview", "")) if updates else None
        by_hand = all(picture != scene.data for scene in examples.scenes())
        return updates if picture is None else updates | self.chosen(picture, by_hand)

    def bring(self, path: str | None) -> Updates:
        """Return the updates after a picture is uploaded. If the file is invalid, the current picture is kept."""
        try:
            data, warnings = examples.uploaded_picture(path)
        except BadInput as error:
            return self.say(error)
        return self.chosen(data) | self.say(" ".join(warnings), note=True)

    def take(self, basics: str, event: gr.EventData) -> Updates:
        """Return the updates that take over the clicked example picture and its question."""
        if scene := examples.clicked(event, examples.scenes()):
            return self.chosen(scene.data) | {self.prompt: scene.question} | self.say("")
        return {self.banner: gr.skip()}

    def chosen(self, data: bytes, by_hand: bool = True) -> Updates:
        """Return the updates that select a picture. ``by_hand``: whether the visitor chose the picture."""
        return {self.picture: data, self.preview: examples.preview(data), self.by_hand: by_hand}

    def wire(self, tab_page: gr.Tab | None) -> None:
        super().wire(tab_page)
        self.upload.upload(self.bring, self.upload, self.outputs, **QUIET)
