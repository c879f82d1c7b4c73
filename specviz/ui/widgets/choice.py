"""Drop-down with headings, for lists too long to read through: the browser's own, so that keys and phones know it."""

from __future__ import annotations

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
        js_on_load=_script(),
        apply_default_css=False,
        elem_id=elem_id,
        **more,
    )


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
def _script() -> str:
    return (Path(__file__).parent / "choice.js").read_text(encoding="utf-8")
