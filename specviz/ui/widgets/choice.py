"""Drop-downs with headings, for lists too long to read through: the browser's own, so that keys and phones know them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from specviz.figures.theme import markup
from specviz.methods.registry import families

Choices = dict[str, list[tuple[str, str]]]


def methods(modality: str = "text") -> Choices:
    """Title and name of every method under the title of its family."""
    return {
        title: [(method.title, method.name) for method in family_methods] for title, family_methods in families(modality).items()
    }


def choice(choices: Choices, value: str, label: str, *, elem_id: str, **more: Any) -> gr.HTML:
    """The drop-down; its value is the chosen name, and ``input`` says that the visitor chose it."""
    return gr.HTML(
        value,
        html_template=_template(choices, value, label, f"{elem_id}-choice"),
        js_on_load=_script("choice"),
        apply_default_css=False,
        elem_id=elem_id,
        **more,
    )


def listing(groups: Choices, value: str, label: str, *, elem_id: str, **more: Any) -> gr.HTML:
    """A drop-down whose entries change while the page is open; its value is that of :func:`listed`."""
    name = f"{elem_id}-choice"
    field = f'<div class="sp-field sp-choice"><label for="{name}">{markup(label)}</label><select id="{name}"></select></div>'
    return gr.HTML(
        listed(groups, value),
        html_template=field,
        js_on_load=_script("listing"),
        apply_default_css=False,
        elem_id=elem_id,
        **more,
    )


def listed(groups: Choices, value: str) -> str:
    """The entries of a :func:`listing` and the name of the chosen one, empty where none is, as JSON text."""
    return json.dumps({"value": value, "groups": [[title, entries] for title, entries in groups.items()]})


def chosen(payload: str | None) -> str:
    """The name that a :func:`listing` says was chosen; empty where it does not say so."""
    try:
        name = json.loads(payload or "")["value"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name if isinstance(name, str) else ""


def _template(choices: Choices, value: str, label: str, name: str) -> str:
    groups = "".join(
        f'<optgroup label="{markup(title)}">{"".join(_option(*entry, value) for entry in listed)}</optgroup>'
        for title, listed in choices.items()
    )
    select = f'<select id="{name}">{groups}</select>'
    return f'<div class="sp-field sp-choice"><label for="{name}">{markup(label)}</label>{select}</div>'


def _option(title: str, name: str, value: str) -> str:
    return f'<option value="{markup(name)}"{" selected" if name == value else ""}>{markup(title)}</option>'


@cache
def _script(name: str) -> str:
    return (Path(__file__).parent / f"{name}.js").read_text(encoding="utf-8")
