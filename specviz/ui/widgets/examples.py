"""Example prompts under the prompt, one click each, grouped by how easy they are to draft."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import gradio as gr

from specviz.figures.theme import markup
from specviz.paths import ASSETS
from specviz.ui import theme

Entry = TypeVar("Entry")


@cache
def groups(modality: str) -> list[dict[str, Any]]:
    """Groups of a modality's examples: a kind, its examples, and optionally its expected effect and a temperature."""
    return list(tomllib.loads((ASSETS / "prompts" / "examples.toml").read_text("utf-8"))[modality])


def prompts(modality: str) -> list[tuple[str, float | None]]:
    """Every example's prompt and temperature, if it has one."""
    return [(example["prompt"], group.get("temperature")) for group in groups(modality) for example in group["examples"]]


def picker(modality: str, elem_id: str) -> gr.HTML:
    """Closed list of examples; the event ``choose`` carries the index of the clicked one."""
    html, at = "", 0
    for group in groups(modality):
        expect = f"<p>{markup(group['expect'])}</p>" if "expect" in group else ""
        html += f"<section><h2>{markup(group['kind'])}</h2>{expect}<div>"
        for example in group["examples"]:
            prompt = markup(example["prompt"])
            html += f'<button type="button" data-at="{at}" title="{prompt}">{markup(example.get("label", "")) or prompt}</button>'
            at += 1
        html += "</div></section>"
    return clickable(
        f'<details class="sp-examples"><summary>Examples</summary><div class="sp-pop">{html}</div></details>', elem_id
    )


def clickable(html: str, elem_id: str) -> gr.HTML:
    """HTML with buttons that have a ``data-at``; the event ``choose`` carries that of the clicked one."""
    return gr.HTML(html, js_on_load=theme.source("widgets/examples.js"), apply_default_css=False, elem_id=elem_id)


def clicked(event: gr.EventData, entries: Sequence[Entry]) -> Entry | None:
    """Return the clicked entry; None for an invalid index."""
    at = event._data.get("at") if isinstance(event._data, dict) else None
    return entries[at] if isinstance(at, int) and 0 <= at < len(entries) else None
