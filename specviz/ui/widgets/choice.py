"""Drop-downs with headings, for long lists: the browser's native ones, which work with keyboards and phones."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from specviz.figures.theme import markup
from specviz.methods.registry import families
from specviz.ui import theme

Choices = dict[str, list[tuple[str, str]]]


def methods(modality: str = "text") -> Choices:
    """Title and name of every method under the title of its family."""
    return {
        title: [(method.title, method.name) for method in family_methods] for title, family_methods in families(modality).items()
    }


def choice(choices: Choices, value: str, label: str, *, elem_id: str, **more: Any) -> gr.HTML:
    """Drop-down whose value is the chosen name; ``input`` fires when the visitor chooses one."""
    options = ""
    for title, entries in choices.items():
        options += f'<optgroup label="{markup(title)}">'
        for text, name in entries:
            options += f'<option value="{markup(name)}"{" selected" if name == value else ""}>{markup(text)}</option>'
        options += "</optgroup>"
    return _field("choice", value, label, options, elem_id, more)


def listing(groups: Choices, value: str, label: str, *, elem_id: str, **more: Any) -> gr.HTML:
    """A drop-down whose entries change while the page is open; its value is that of :func:`listed`."""
    return _field("listing", listed(groups, value), label, "", elem_id, more)


def listed(groups: Choices, value: str) -> str:
    """The entries of a :func:`listing` and the chosen name, empty for none, as JSON text."""
    return json.dumps({"value": value, "groups": [[title, entries] for title, entries in groups.items()]})


def chosen(payload: str | None) -> str:
    """Return the chosen name in the value of a :func:`listing`; empty if it holds none."""
    try:
        name = json.loads(payload or "")["value"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name if isinstance(name, str) else ""


def _field(script: str, value: str, label: str, options: str, elem_id: str, more: Any) -> gr.HTML:
    name = f"{elem_id}-choice"
    return gr.HTML(
        value,
        html_template=f'<div class="sp-field sp-choice"><label for="{name}">{markup(label)}</label>'
        f'<select id="{name}">{options}</select></div>',
        js_on_load=theme.source(f"widgets/{script}.js"),
        apply_default_css=False,
        elem_id=elem_id,
        **more,
    )
