"""Example prompts under the prompt: grouped, one click each."""

from __future__ import annotations

from typing import Any

import gradio as gr

from specviz.figures.theme import markup
from specviz.ui.widgets import controls
from specviz.ui.widgets.examples import GROUPS

_SCRIPT = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-at]");
  if (!button) return;
  element.querySelector("details").open = false;
  trigger("choose", { at: Number(button.dataset.at) });
});
element.addEventListener("keydown", (event) => {
  const details = element.querySelector("details");
  if (event.key !== "Escape" || !details.open) return;
  details.open = false;
  details.querySelector("summary").focus();
});
"""

EXAMPLES = tuple((example.prompt, group.temperature) for group in GROUPS for example in group.examples)


def picker() -> gr.HTML:
    """The closed list."""
    return gr.HTML(_list(), js_on_load=_SCRIPT, apply_default_css=False, elem_id="sp-examples")


def chosen(basics: str, event: gr.EventData) -> Any:
    """The prompt that was clicked, and the form with its temperature; nothing for a number the list does not have."""
    at = event._data.get("at") if isinstance(event._data, dict) else None
    if not isinstance(at, int) or not 0 <= at < len(EXAMPLES):
        return gr.skip(), gr.skip()
    prompt, temperature = EXAMPLES[at]
    return prompt, controls.replaced(basics, "temperature", temperature)


def _list() -> str:
    at = iter(range(len(EXAMPLES)))
    groups = "".join(
        f"<section><h2>{markup(group.kind)}</h2><p>{markup(group.expect)}</p><div>"
        + "".join(
            f'<button type="button" data-at="{next(at)}" title="{markup(example.prompt)}">{markup(example.label)}</button>'
            for example in group.examples
        )
        + "</div></section>"
        for group in GROUPS
    )
    return f'<details class="sp-examples"><summary>Examples</summary><div class="sp-pop">{groups}</div></details>'
