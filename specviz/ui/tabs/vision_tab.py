"""The Vision-language tab: a picture and a question; the picture stands beside the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.errors import BadInput
from specviz.models.hub.catalog import DEFAULT_VISION_TARGET
from specviz.ui import theme
from specviz.ui.app_state import AppState
from specviz.ui.browser_state import Kept
from specviz.ui.tabs import request_form, run_tab
from specviz.ui.tabs.request_form import FormState
from specviz.ui.tabs.run_tab import Runs, RunTab, Updates, banner_html
from specviz.ui.tabs.text_run import QUIET, Change
from specviz.ui.widgets import example_scenes as scene_shelf
from specviz.ui.widgets.example_scenes import Example
from specviz.ui.widgets.examples import clicked

MODALITY = "vision_language"
FIRST = "hivis"
LIMITS = f"{DEFAULT_VISION_TARGET}, the included target, knows emoji and plain shapes only: it invents things in a photograph."


@dataclass
class VisionTab(RunTab):
    """A picture and words in, words out. ``picture`` is private to this page, as bytes of a file; a recorded run has its own."""

    modality = MODALITY
    prefix = "sp-see"
    kept = (*RunTab.kept, "preview")

    examples: tuple[Example, ...]
    picture: gr.State
    by_hand: gr.State
    """Whether the visitor chose the picture, which then stays when another method is chosen."""
    scenes_filled: gr.State
    preview: gr.HTML
    upload: gr.UploadButton
    scenes: gr.HTML

    @property
    def outputs(self) -> list[Any]:
        """Components that a change may update."""
        return [*super().outputs, self.picture, self.by_hand, self.preview]

    @property
    def filling(self) -> list[Any]:
        """The run, the scenes and the picture, all sent when the tab is opened."""
        return [*super().filling, self.scenes_filled, self.scenes, self.preview]

    def fill(self, request: gr.Request, filled: bool, run_name: str, *more: Any) -> Updates:
        """Send the run and the scenes, and the picture if no run has brought one."""
        picture, scenes_filled = more
        scenes = {} if scenes_filled else {self.scenes_filled: True, self.scenes: scene_shelf.buttons(self.examples)}
        preview = {} if filled else {self.preview: scene_shelf.preview(picture)}
        return super().fill(request, filled, run_name) | scenes | preview

    @property
    def filled_from(self) -> list[Any]:
        """The picture, which a reloaded page may have restored already, and whether the scenes were sent."""
        return [self.picture, self.scenes_filled]

    @property
    def own_choices(self) -> list[Any]:
        """Whether the visitor chose the picture, which then stays with every method."""
        return [self.by_hand]

    def apply_limits(self, updates: Updates, method: str, *own_choices: Any) -> Updates:
        """Return the updates of choosing ``method``, without the picture if the visitor chose it."""
        mine = (self.picture, self.by_hand, self.preview) if any(own_choices) else ()
        return {part: value for part, value in super().apply_limits(updates, method).items() if part not in mine}

    def updates(self, change: Change, runs: Runs) -> Updates:
        """Return a change as Gradio updates; a run's settings include its picture."""
        updates = super().updates(change, runs)
        if change.settings_run is None or change.trace is None or not self.knows(change.settings_run):
            return updates
        picture = scene_shelf.of_run(change.trace)
        return updates if picture is None else updates | self.chosen(picture, by_hand=False)

    def restore(self, part: Kept) -> Updates:
        """Return the updates that restore a page's kept controls, the picture among them."""
        updates = super().restore(part)
        picture = scene_shelf.of_preview(part.form(self.kept).get("preview", "")) if updates else None
        if picture is None:
            return updates
        return updates | self.chosen(picture, by_hand=all(picture != scene.data for scene in self.examples))

    @property
    def request_controls(self) -> list[Any]:
        """The controls in the order of :meth:`ask`."""
        return [*super().request_controls, self.picture]

    @staticmethod
    def ask(method: str, target: str, prompt: str, basics: str, advanced: str, own: str, picture: bytes | None) -> FormState:
        """Return the current values of the controls."""
        return FormState(method, target, None, prompt, basics, advanced, own, MODALITY, picture)

    def bring(self, path: str | None) -> dict[Any, Any]:
        """Open an uploaded picture safely; one that cannot be opened leaves the current one."""
        try:
            data, warnings = scene_shelf.uploaded_picture(path)
        except BadInput as error:
            return {self.banner: banner_html(str(error))}
        return self.chosen(data) | {self.banner: banner_html(" ".join(warnings), note=True)}

    def take(self, event: gr.EventData) -> dict[Any, Any]:
        """Take the clicked example scene, with its question."""
        scene = clicked(event, self.examples)
        if scene is None:
            return {self.banner: gr.skip()}
        return self.chosen(scene.data) | {self.prompt: scene.question, self.banner: banner_html("")}

    def chosen(self, data: bytes, by_hand: bool = True) -> dict[Any, Any]:
        """Updates that choose this picture."""
        return {self.picture: data, self.preview: scene_shelf.preview(data), self.by_hand: by_hand}


def build(shared: AppState, tab_page: gr.Tab) -> VisionTab:
    """Lay the tab out and connect it; ``tab_page`` is the tab itself."""
    examples, recorded = scene_shelf.examples(), shared.archive.gallery.first(MODALITY)
    run_name, runs = gr.State(recorded.name if recorded else ""), gr.State([])
    parts = run_tab.layout(VisionTab, shared, recorded, run_name, lambda: _controls(shared, examples))
    picture = gr.State(examples[0].data if examples else None)
    tab = VisionTab(
        shared,
        run_name,
        runs,
        examples=examples,
        picture=picture,
        by_hand=gr.State(False),
        scenes_filled=gr.State(False),
        **parts,
    )
    tab.wire(tab_page)
    looks = [tab.picture, tab.by_hand, tab.preview, tab.prompt, tab.banner]
    tab.upload.upload(tab.bring, tab.upload, looks, **QUIET)
    tab.scenes.choose(tab.take, None, looks, queue=False, **QUIET)
    return tab


def _controls(shared: AppState, examples: tuple[Example, ...]) -> dict[str, Any]:
    settings, first = shared.settings, examples[0] if examples else None
    components: dict[str, Any] = {
        "preview": theme.html("", elem_id="sp-see-preview"),
        "scenes": scene_shelf.shelf(),
        "upload": gr.UploadButton(
            "Bring your own picture", type="filepath", file_count="single", size="sm", elem_id="sp-see-upload",
            file_types=[".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"],
        ),
    }  # fmt: skip
    theme.html(f'<p class="sp-summary">{LIMITS}</p>', elem_id="sp-see-limits")
    question, target = first.question if first else "", DEFAULT_VISION_TARGET
    targets = request_form.models("target", settings, MODALITY, target)
    return {
        **components,
        "prompt": gr.Textbox(question, label="Question", lines=2, max_lines=4, elem_id="sp-see-prompt"),
        **run_tab.method_controls(VisionTab, FIRST, "", targets, target, settings.any_model),
        **run_tab.form_controls(VisionTab, request_form.forms(settings), FIRST),
    }
