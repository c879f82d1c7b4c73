"""Drop-down with headings, for long lists: the browser's native one, which works with keyboards and phones."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from specviz.figures.theme import markup
from specviz.ui import theme

Groups = dict[str, list[tuple[str, str]]]
"""Title and name of every entry under its heading."""


def choice(groups: Groups, value: str, label: str, *, elem_id: str, **more: Any) -> gr.HTML:
    """Drop-down whose value is the chosen name; ``input`` fires when the visitor chooses one."""
    name = f"{elem_id}-choice"
    return gr.HTML(
        value,
        html_template=f'<div class="sp-field sp-choice"><label for="{name}">{markup(label)}</label>'
        f'<select id="{name}" data-groups="{markup(json.dumps(list(groups.items())))}"></select></div>',
        js_on_load=theme.source("widgets/choice.js"),
        apply_default_css=False,
        elem_id=elem_id,
        **more,
    )


def listing(groups: Groups, value: str) -> dict[str, Any]:
    """Update of a drop-down's entries and of the chosen one."""
    return gr.update(value=value, groups=list(groups.items()))
