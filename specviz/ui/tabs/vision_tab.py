"""The Vision-language tab: a picture and a question; the picture is shown beside the answer."""

from __future__ import annotations

from typing import Any

import gradio as gr

from specviz.errors import BadInput
from specviz.models.hub.catalog import DEFAULT_VISION_TARGET
from specviz.trace.schema import Trace
from specviz.ui import theme
from specviz.ui.browser_state import Kept
from specviz.ui.tabs.events import QUIET, Updates
from specviz.ui.tabs.run_tab import RunTab
from specviz.ui.widgets import examples
from specviz.ui.widgets.gallery import Recording

LIMITS = f"{DEFAULT_VISION_TARGET}, the included target, knows emoji and plain shapes only: it invents things in a photograph."


class VisionTab(RunTab):
    """A picture and words in, words out. ``picture`` is private to this page, as bytes of a file; a recorded run has its own."""

    modality, prefix, default_method, ask = "vision_language", "sp-see", "hivis", "Question"
    controls = (*RunTab.controls, "picture")
    kept = (*RunTab.kept, "preview")

    def add_controls(self, first: Recording | None) -> None:
        """Make the controls, with the first scene."""
        scene = examples.scenes()[0]
        self.picture = gr.State(scene.data)
        self.by_hand = gr.State(False)
        """Whether the visitor chose the picture, which then stays when the method changes."""
        self.preview = theme.html(examples.preview(scene.data), elem_id="sp-see-preview")
        self.examples = examples.shelf()
        self.upload = gr.UploadButton(
            "Bring your own picture", size="sm", elem_id="sp-see-upload",
            file_types=[".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"],
        )  # fmt: skip
        theme.html(f'<p class="sp-summary">{LIMITS}</p>', elem_id="sp-see-limits")
        self.add_prompt(scene.question)
        self.add_method(self.default_method)
        self.add_forms(self.default_method)

    @property
    def own_choices(self) -> list[Any]:
        """The controls of a run's tab, and whether the visitor chose the picture."""
        return [*super().own_choices, self.by_hand]

    def apply_limits(self, updates: Updates, method: str, target: str, before: str, by_hand: bool = False) -> Updates:
        """Return the updates of choosing ``method``, without the picture if the visitor chose it."""
        mine = (self.picture, self.by_hand, self.preview) if by_hand else ()
        kept = super().apply_limits(updates, method, target, before)
        return {part: value for part, value in kept.items() if part not in mine}

    def take_over(self, trace: Trace, run_name: str) -> Updates:
        """Set the controls to a run's settings, its picture among them."""
        updates, picture = super().take_over(trace, run_name), examples.of_run(trace)
        return updates if picture is None else updates | self.chosen(picture, by_hand=False)

    def restore(self, part: Kept) -> Updates:
        """Return the updates that restore a page's kept controls, the picture among them."""
        updates = super().restore(part)
        picture = examples.of_preview(part.values(self.kept).get("preview", "")) if updates else None
        if picture is None:
            return updates
        return updates | self.chosen(picture, by_hand=all(picture != scene.data for scene in examples.scenes()))

    def bring(self, path: str | None) -> Updates:
        """Open an uploaded picture safely; if it cannot be opened, keep the current one."""
        try:
            data, warnings = examples.uploaded_picture(path)
        except BadInput as error:
            return self.say(error)
        return self.chosen(data) | self.say(" ".join(warnings), note=True)

    def take(self, basics: str, event: gr.EventData) -> Updates:
        """Take the clicked example scene, with its question."""
        scene = examples.clicked(event, examples.scenes())
        if scene is None:
            return {self.banner: gr.skip()}
        return self.chosen(scene.data) | {self.prompt: scene.question} | self.say("")

    def chosen(self, data: bytes, by_hand: bool = True) -> Updates:
        """Updates that choose this picture."""
        return {self.picture: data, self.preview: examples.preview(data), self.by_hand: by_hand}

    def wire(self, tab_page: gr.Tab | None) -> None:
        """Connect the controls, the upload among them."""
        super().wire(tab_page)
        self.upload.upload(self.bring, self.upload, self.outputs, **QUIET)
