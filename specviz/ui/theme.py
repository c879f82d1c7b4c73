"""Theme of the page around the stage: one Gradio theme made of the stage's own colours, and the page's style sheet."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from specviz import palette
from specviz.palette import Theme

HERE = Path(__file__).parent


def _colours(shared: Theme, hover: str) -> dict[str, str]:
    """The page's names for the shared colours, and one colour that only the page has."""
    return {
        "ground": shared.ground, "card": shared.paper, "ink": shared.ink, "mute": shared.mute, "line": shared.line,
        "edge": shared.strong, "accent": shared.accepted, "accent_hover": hover, "on_accent": shared.on_fill,
        "soft": shared.tints["accepted"], "warn": shared.rejected, "warn_soft": shared.tints["rejected"],
        "good": shared.bonus, "amber": shared.relaxed_ink,
    }  # fmt: skip


LIGHT = _colours(palette.LIGHT, "#005f95")
DARK = _colours(palette.DARK, "#6cbcec")

# Gradio's variables by the colour each takes, for light and dark alike.
COLOURS = {
    "ground": ("body_background_fill", "background_fill_primary", "background_fill_secondary"),
    "card": (
        "input_background_fill", "input_background_fill_focus", "checkbox_background_color",
        "button_secondary_background_fill", "table_even_background_fill", "table_odd_background_fill",
    ),
    "ink": ("body_text_color", "button_secondary_text_color", "table_text_color", "accordion_text_color"),
    "mute": (
        "body_text_color_subdued", "block_label_text_color", "block_title_text_color", "block_info_text_color",
        "input_placeholder_color",
    ),
    "line": ("border_color_primary", "button_secondary_border_color", "table_border_color"),
    "edge": ("input_border_color", "checkbox_border_color", "checkbox_border_color_hover", "button_secondary_border_color_hover"),
    "accent": (
        "color_accent", "border_color_accent", "link_text_color", "input_border_color_focus", "button_primary_background_fill",
        "button_primary_border_color", "checkbox_background_color_selected", "checkbox_border_color_selected",
        "checkbox_border_color_focus", "slider_color", "loader_color",
    ),
    "accent_hover": ("button_primary_background_fill_hover", "button_primary_border_color_hover", "link_text_color_hover"),
    "on_accent": ("button_primary_text_color",),
    "soft": ("color_accent_soft", "button_secondary_background_fill_hover"),
}  # fmt: skip

SHAPES = {
    "block_border_width": "0px", "block_padding": "0px", "block_shadow": "none", "block_radius": "8px",
    "block_background_fill": "transparent", "block_label_background_fill": "transparent", "block_label_border_width": "0px",
    "block_label_padding": "0px", "block_title_padding": "0px", "block_title_background_fill": "transparent",
    "block_title_text_size": "12px", "block_label_text_size": "12px", "block_info_text_size": "11.5px",
    "block_title_text_weight": "400", "block_label_text_weight": "400", "panel_border_width": "0px",
    "panel_background_fill": "transparent", "input_padding": "6px 9px", "input_radius": "7px", "input_border_width": "1px",
    "input_shadow": "none", "input_shadow_focus": "none", "input_text_size": "13px", "form_gap_width": "0px",
    "layout_gap": "10px", "button_large_radius": "8px", "button_medium_radius": "7px", "button_small_radius": "7px",
    "button_large_padding": "8px 14px", "button_medium_padding": "6px 12px", "button_small_padding": "4px 10px",
    "button_large_text_size": "14px", "button_medium_text_size": "13px", "button_small_text_size": "12px",
    "button_secondary_text_color_hover": "*body_text_color", "button_border_width": "1px", "shadow_drop": "none",
    "checkbox_label_background_fill": "transparent", "checkbox_label_border_width": "0px", "checkbox_label_padding": "0px",
    "checkbox_label_background_fill_hover": "transparent", "checkbox_label_background_fill_selected": "transparent",
    "checkbox_label_text_size": "13px", "checkbox_label_text_weight": "400", "body_text_size": "14px",
}  # fmt: skip


@cache
def theme() -> gr.themes.Base:
    """Gradio's plainest theme in our colours, with fonts the visitor's machine already has."""
    base = gr.themes.Base(font=_fonts(palette.SANS), font_mono=_fonts(palette.MONO))
    known = set(gr.themes.Base.set.__code__.co_varnames)
    chosen: dict[str, str] = {}
    for colour, names in COLOURS.items():
        for name in names:
            chosen[name] = LIGHT[colour]
            if f"{name}_dark" in known:
                chosen[f"{name}_dark"] = DARK[colour]
    dark_shapes = {f"{name}_dark": value for name, value in SHAPES.items() if f"{name}_dark" in known}
    return base.set(**chosen, **SHAPES, **dark_shapes)


@cache
def css() -> str:
    """The page's style sheet, our colours as variables first."""
    return "".join((_variables(".gradio-container", LIGHT), _variables(".dark .gradio-container", DARK), source("page.css")))


def html(value: str = "", **more: Any) -> gr.HTML:
    """HTML component styled by our style sheet alone."""
    return gr.HTML(value, apply_default_css=False, js_on_load=None, **more)


def _fonts(listed: str) -> list[str]:
    return [name.strip().strip('"') for name in listed.split(",")]


def _variables(selector: str, colours: dict[str, str]) -> str:
    listed = ";".join(f"--sp-{name.replace('_', '-')}:{value}" for name, value in colours.items())
    return f"{selector}{{{listed}}}\n"


@cache
def source(name: str) -> str:
    """Read a script or a style sheet of this folder."""
    return (HERE / name).read_text(encoding="utf-8")
