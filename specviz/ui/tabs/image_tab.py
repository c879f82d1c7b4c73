"""The Image tab: a prompt, a target and a method; the picture grows beside its tree and its codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.pipeline.request import Request
from specviz.trace.schema import Run
from specviz.ui.app_state import AppState
from specviz.ui.tabs import image_form, run_tab
from specviz.ui.tabs.image_form import ImageFormState
from specviz.ui.tabs.run_tab import RunTab
from specviz.ui.tabs.text_run import QUIET
from specviz.ui.widgets import examples
from specviz.ui.widgets.examples import Example, Group

PROMPTS = tuple(prompt for _, prompts in image_form.EXAMPLES for prompt in prompts)
GROUPS = tuple(Group(kind, "", tuple(Example(prompt, prompt) for prompt in prompts)) for kind, prompts in image_form.EXAMPLES)


@dataclass
class ImageTab(RunTab):
    """Words in, a picture out."""

    modality = "image"
    prefix = "sp-image"
    verb = ("Draw live", "Drawing")
    idea = run_tab.IDEA.replace("a tree of tokens", "picture codes").replace("checks it", "checks them")

    examples: gr.HTML

    def request(self, *control_values: Any) -> Request:
        """Build the request from the controls. Raises BadInput."""
        return image_form.request(ImageFormState(*control_values), self.shared.settings)

    def forms(self, run: Run | None = None) -> tuple[str, str]:
        """Basic and advanced form with a run's settings, or with the defaults."""
        return image_form.basics(run), image_form.advanced(run)


def build(shared: AppState, tab_page: gr.Tab) -> ImageTab:
    """Lay the tab out and connect it; ``tab_page`` is the tab itself."""
    first = shared.archive.gallery.first(ImageTab.modality)
    run_name, runs = gr.State(first.name if first else ""), gr.State([])
    run, note = (first.run, first.watch) if first else (None, "")
    parts = run_tab.layout(ImageTab, shared, first, run_name, lambda: _controls(shared, run, note))
    tab = ImageTab(shared, run_name, runs, **parts)
    tab.wire(tab_page)
    tab.examples.choose(chosen, None, tab.prompt, queue=False, **QUIET)
    return tab


def _controls(shared: AppState, first: Run | None, note: str) -> dict[str, Any]:
    method = first.method if first else image_form.METHOD
    targets, target = image_form.targets(shared.settings), image_form.catalog.DEFAULT_IMAGE_TARGET
    prompt = first.prompt if first else PROMPTS[0]
    return {
        **run_tab.method_controls(ImageTab, method, note, targets, target, own=True),
        "prompt": gr.Textbox(prompt, label="What to draw", lines=2, max_lines=4, elem_id="sp-image-prompt"),
        "examples": examples.picker(GROUPS, "sp-image-examples"),
        **run_tab.form_controls(ImageTab, (image_form.basics(first), image_form.advanced(first)), method, first),
    }


def chosen(event: gr.EventData) -> Any:
    """Return the clicked prompt."""
    return examples.clicked(event, PROMPTS) or gr.skip()
