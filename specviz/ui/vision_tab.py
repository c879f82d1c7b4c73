"""The vision-language tab: a picture and a question at the left, the stage at the right; the doing is in text_run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.errors import BadInput
from specviz.methods.registry import all_methods
from specviz.models.catalog import DEFAULT_VISION_TARGET
from specviz.trace.schema import Run
from specviz.ui import asking, choice, controls, panels, scene_shelf, tail, text_run, theme
from specviz.ui.asking import Asked
from specviz.ui.gathered import gathered
from specviz.ui.scene_shelf import Example
from specviz.ui.shared import Shared
from specviz.ui.shown import choices, title
from specviz.ui.text_run import Change
from specviz.viewer.component import Stage

MODALITY = "vision_language"
FIRST = "hivis"


@dataclass
class VisionTab:
    """The components, and how a :class:`Change` reaches them. ``picture`` is this page's alone, as PNG bytes."""

    shared: Shared
    examples: tuple[Example, ...]
    stage: gr.HTML
    shown: gr.State
    runs: gr.State
    recording: gr.Dropdown
    picture: gr.State
    banner: gr.HTML
    run: gr.Button
    stop: gr.Button
    why: gr.HTML
    method: gr.HTML
    summary: gr.HTML
    own: gr.HTML
    target: gr.Dropdown
    preview: gr.HTML
    upload: gr.UploadButton
    scenes: gr.HTML
    prompt: gr.Textbox
    basics: gr.HTML
    advanced: gr.HTML

    @property
    def outputs(self) -> list[Any]:
        """Everything a run may touch."""
        return [
            self.stage, self.shown, self.runs, self.recording, self.banner, self.run, self.stop, self.why, self.method,
            self.summary, self.own, self.prompt,
        ]  # fmt: skip

    @property
    def asked(self) -> list[Any]:
        """The controls in the order of :meth:`ask`."""
        return [self.method, self.target, self.prompt, self.basics, self.advanced, self.own, self.picture]

    @staticmethod
    def ask(
        method: str, target: str, prompt: str, basics: str, advanced: str, own: str, picture: bytes | None
    ) -> Asked:
        """The controls as they stand."""
        return Asked(method, target, None, prompt, basics, advanced, own, MODALITY, picture)

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
            made[self.recording] = gr.Dropdown(choices(self.shared.library, runs, MODALITY), value=change.shown or None)
        if change.banner is not None:
            made[self.banner] = said(change.banner, change.note)
        if change.running is not None:
            made[self.run] = gr.Button("Running" if change.running else "Run live")
            made[self.stop] = gr.Button(visible=change.running)
            if change.running:
                made[self.why] = panels.why(None)
        if change.trace is not None:
            made[self.why] = panels.why(change.trace, change.timing, "")
        if change.asked is not None and MODALITY in getattr(all_methods().get(change.asked.method), "modality", ()):
            made |= self.take_over(change.asked, change.shown or "")
        return made

    def take_over(self, run: Run, shown: str) -> dict[Any, Any]:
        """Set method and question to what a recorded run was asked; the picture it was asked about is on its stage."""
        return {
            self.method: run.method,
            self.summary: panels.summary(run.method, self.shared.library.note(shown)),
            self.own: controls.method_answer(run.method, dict(run.parameters)),
            self.prompt: run.prompt,
        }

    def bring(self, path: str | None) -> dict[Any, Any]:
        """An uploaded picture, opened with care; one that cannot be leaves the one that was there."""
        try:
            data, warnings = scene_shelf.brought(path)
        except BadInput as error:
            return {self.banner: said(str(error))}
        return self.chosen(data) | {self.banner: said(" ".join(warnings), note=True)}

    def take(self, event: gr.EventData) -> dict[Any, Any]:
        """An example scene, with its question."""
        found = scene_shelf.at(event, self.examples)
        if found is None:
            return {self.banner: gr.skip()}
        return self.chosen(found.data) | {self.prompt: found.question, self.banner: said("")}

    def chosen(self, data: bytes) -> dict[Any, Any]:
        """This picture in its place."""
        return {self.picture: data, self.preview: scene_shelf.preview(data)}

    def of_method(self, name: str) -> dict[Any, Any]:
        """What depends on the method alone."""
        return {self.summary: panels.summary(name), self.own: controls.method_answer(name)}


def said(message: str, note: bool = False) -> Any:
    """The banner with this message, gone without one."""
    return gr.HTML(panels.banner(message, "note" if note else "error"), visible=bool(message))


def build(shared: Shared) -> VisionTab:
    """Lay the tab out and connect it."""
    examples = scene_shelf.examples()
    first = examples[0] if examples else None
    recorded = shared.library.gallery.first(MODALITY)
    name = recorded.name if recorded else ""
    shown, runs, picture = gr.State(name), gr.State([]), gr.State(first.data if first else None)
    recording = gr.Dropdown(
        choices(shared.library, [], MODALITY), value=name or None, label="Showing", elem_id="sp-see-recording",
        elem_classes="sp-top", min_width=0,
    )  # fmt: skip
    with gr.Row(elem_classes="sp-room"):
        with gr.Column(elem_classes="sp-side", scale=0, min_width=0):
            with gr.Column(elem_classes="sp-scroll", min_width=0):
                parts = _controls(shared, examples)
            with gr.Column(elem_classes="sp-foot", min_width=0):
                with gr.Row(elem_classes="sp-go"):
                    parts["run"] = gr.Button(
                        "Run live", variant="primary", size="lg", min_width=0, elem_id="sp-see-run"
                    )
                    parts["stop"] = gr.Button("Stop", size="lg", min_width=0, visible=False, elem_classes="sp-stop")
                parts["why"] = theme.html(panels.why(recorded.trace if recorded else None, False, ""))
        with gr.Column(elem_classes="sp-main", min_width=0):
            with gr.Column(elem_classes="sp-front", min_width=0):
                parts["banner"] = theme.html("", visible=False)
                lines = shared.library.store.lines
                parts["stage"] = Stage(
                    shared.library.feed(name),
                    elem_id="sp-see-stage",
                    elem_classes="sp-stage",
                    lines=lines,
                    tail=tail.PATH,
                )
    tab = VisionTab(shared, examples, shown=shown, runs=runs, recording=recording, picture=picture, **parts)
    _wire(tab)
    return tab


def _controls(shared: Shared, examples: tuple[Example, ...]) -> dict[str, Any]:
    settings, first = shared.settings, examples[0] if examples else None
    made: dict[str, Any] = {
        "preview": theme.html(scene_shelf.preview(first.data if first else None), elem_id="sp-see-preview"),
        "scenes": scene_shelf.shelf(examples),
        "upload": gr.UploadButton(
            "Bring your own picture", type="filepath", file_count="single", size="sm", elem_id="sp-see-upload",
            file_types=[".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"],
        ),
        "prompt": gr.Textbox(
            first.question if first else "", label="Question", lines=2, max_lines=4, elem_id="sp-see-prompt"
        ),
        "method": choice.choice(choice.methods(MODALITY), FIRST, "Method", elem_id="sp-see-method"),
        "summary": theme.html(panels.summary(FIRST)),
        "target": gr.Dropdown(
            asking.models("target", modality=MODALITY), value=DEFAULT_VISION_TARGET, label="Target",
            allow_custom_value=settings.any_model, elem_id="sp-see-target",
        ),
        "basics": controls.form(asking.basics(settings), elem_id="sp-see-basics"),
        "own": controls.form(controls.method_answer(FIRST), elem_id="sp-see-own"),
    }  # fmt: skip
    with gr.Accordion("Advanced", open=False, elem_classes="sp-fold"):
        made["advanced"] = controls.form(asking.advanced(settings), elem_id="sp-see-advanced")
    return made


def _wire(tab: VisionTab) -> None:
    shared = tab.shared
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}

    def go(shown: str, runs: list[tuple[str, str]], request: gr.Request, *asked: Any) -> Iterator[dict[Any, Any]]:
        mine, wanted = list(runs), tab.ask(*asked)
        if wanted.method not in all_methods():
            yield {tab.banner: said("Choose a method.")}
            return
        with closing(text_run.live(shared, request.session_hash, shown, wanted)) as changes:
            yield from gathered(tab.updates(change, mine) for change in changes)

    def play(name: str, runs: list[tuple[str, str]], request: gr.Request) -> dict[Any, Any]:
        return tab.updates(text_run.recording(shared, request.session_hash, name), list(runs))

    def halt(request: gr.Request) -> None:
        text_run.stop(shared, request.session_hash)

    tab.recording.input(play, [tab.recording, tab.runs], tab.outputs, **quiet)
    gr.on([tab.run.click, tab.prompt.submit], go, [tab.shown, tab.runs, *tab.asked], tab.outputs, **quiet)
    tab.stop.click(halt, None, None, queue=False, show_progress="hidden", api_visibility="private")
    looks = [tab.picture, tab.preview, tab.prompt, tab.banner]
    tab.upload.upload(tab.bring, tab.upload, looks, **quiet)
    tab.scenes.choose(tab.take, None, looks, queue=False, **quiet)
    tab.method.input(tab.of_method, tab.method, [tab.summary, tab.own], queue=False, **quiet)
