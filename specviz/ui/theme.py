"""Gradio theme and style sheet of the page, in the stage's colours."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from specviz import palette
from specviz.viewer import bundle

HERE = Path(__file__).parent


@cache
def source(name: str) -> str:
    """Read a file in this folder."""
    return (HERE / name).read_text(encoding="utf-8")


LOOK = tomllib.loads(source("theme.toml"))


LIGHT = bundle.colours(palette.LIGHT, LOOK) | {"accent-hover": LOOK["hover"]["light"]}
DARK = bundle.colours(palette.DARK, LOOK) | {"accent-hover": LOOK["hover"]["dark"]}


@cache
def theme() -> gr.themes.Base:
    """Return the base theme of Gradio with our colours and system fonts."""
    known = gr.themes.Base.set.__code__.co_varnames
    values = {name: (LIGHT[colour], DARK[colour]) for colour, names in LOOK["gradio"].items() for name in names}
    values |= {name: (shape, shape) for name, shape in LOOK["shapes"].items()}
    chosen = {name: light for name, (light, _) in values.items()}
    chosen |= {f"{name}_dark": dark for name, (_, dark) in values.items() if f"{name}_dark" in known}
    return gr.themes.Base(font=_fonts(palette.SANS), font_mono=_fonts(palette.MONO)).set(**chosen)


@cache
def css() -> str:
    """Return the page's style sheet, with our colours as CSS variables."""
    rules = bundle.rule(".gradio-container", LIGHT, "sp") + bundle.rule(".dark .gradio-container", DARK, "sp")
    return rules + source("page.css")


def html(value: str = "", script: str = "", **more: Any) -> gr.HTML:
    """Return an HTML component without Gradio's styles. ``script``: JavaScript file that makes the component interactive."""
    return gr.HTML(value, apply_default_css=False, js_on_load=script and bundle.slim(source(script)), **more)


@cache
def texts() -> dict[str, Any]:
    """Return the tables of ``texts.toml``."""
    return tomllib.loads(source("texts.toml"))


def _fonts(listed: str) -> list[str]:
    return [name.strip('" ') for name in listed.split(",")]
