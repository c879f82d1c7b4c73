"""The Image tab: what to draw and how; the picture grows beside its tree and its codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.pipeline.request import Request
from specviz.trace.schema import Run
from specviz.ui import theme
from specviz.ui.app_state import AppState
from specviz.ui.tabs import image_form, run_tab
from specviz.ui.tabs.image_form import ImageFormState
from specviz.ui.tabs.run_tab import QUIET, RunTab
from specviz.ui.widgets import choice, controls, panels

_PICK = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-at]");
  if (!button) return;
  element.querySelector("details").open = false;
  trigger("choose", { at: Number(button.dataset.at) });
});
"""
PROMPTS = tuple(prompt for _, prompts in image_form.EXAMPLES for prompt in prompts)


@dataclass
class ImageTab(RunTab):
    """Words in, a picture out."""

    modality = "image"
    prefix = "sp-image"
    verb = ("Draw live", "Drawing")
    idea = run_tab.IDEA.replace("a tree of tokens", "picture codes").replace("checks it", "checks them")

    examples: gr.HTML

    @property
    def request_controls(self) -> list[Any]:
        """The controls in the order of :class:`ImageFormState`."""
        return [self.method, self.target, self.prompt, self.basics, self.advanced, self.own]

    def request(self, *control_values: Any) -> Request:
        """What the controls ask for."""
        return image_form.request(ImageFormState(*control_values), self.shared.settings)

    def forms(self, run: Run | None = None) -> tuple[str, str]:
        """The basic and the advanced form, as a run was asked, or with the defaults."""
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
    components = {
        "method": choice.choice(choice.methods("image"), method, "Method", elem_id="sp-image-method"),
        "summary": theme.html(panels.summary(method, note)),
        "target": gr.Dropdown(
            image_form.targets(shared.settings), value=image_form.catalog.DEFAULT_IMAGE_TARGET, label="Target",
            allow_custom_value=True, elem_id="sp-image-target",
        ),
        "prompt": gr.Textbox(
            first.prompt if first else PROMPTS[0], label="What to draw", lines=2, max_lines=4, elem_id="sp-image-prompt"
        ),
        "examples": gr.HTML(_examples(), js_on_load=_PICK, apply_default_css=False, elem_id="sp-image-examples"),
        "basics": controls.form(image_form.basics(first), elem_id="sp-image-basics"),
        "own": controls.form(
            controls.method_answer(method, dict(first.parameters) if first else None), elem_id="sp-image-own"
        ),
    }  # fmt: skip
    with gr.Accordion("Advanced", open=False, elem_classes="sp-fold"):
        components["advanced"] = controls.form(image_form.advanced(first), elem_id="sp-image-advanced")
    return components


def _examples() -> str:
    at = iter(range(len(PROMPTS)))
    groups = "".join(
        f"<section><h2>{kind}</h2><div>"
        + "".join(f'<button type="button" data-at="{next(at)}">{prompt}</button>' for prompt in prompts)
        + "</div></section>"
        for kind, prompts in image_form.EXAMPLES
    )
    return f'<details class="sp-examples"><summary>Examples</summary><div class="sp-pop">{groups}</div></details>'


def chosen(event: gr.EventData) -> Any:
    """The prompt that was clicked; nothing for a number the list does not have."""
    at = event._data.get("at") if isinstance(event._data, dict) else None
    return PROMPTS[at] if isinstance(at, int) and 0 <= at < len(PROMPTS) else gr.skip()
