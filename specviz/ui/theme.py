"""Theme of the page around the stage: one Gradio theme made of the stage's own colours, and the page's style sheet."""

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
    """Read a file of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


LOOK = tomllib.loads(source("theme.toml"))


LIGHT = bundle.colours(palette.LIGHT, LOOK) | {"accent-hover": LOOK["hover"]["light"]}
DARK = bundle.colours(palette.DARK, LOOK) | {"accent-hover": LOOK["hover"]["dark"]}


@cache
def theme() -> gr.themes.Base:
    """Gradio's plainest theme in our colours, with fonts that the visitor's machine already has."""
    known = gr.themes.Base.set.__code__.co_varnames
    values = {name: (LIGHT[colour], DARK[colour]) for colour, names in LOOK["gradio"].items() for name in names}
    values |= {name: (shape, shape) for name, shape in LOOK["shapes"].items()}
    chosen = {name: light for name, (light, _) in values.items()}
    chosen |= {f"{name}_dark": dark for name, (_, dark) in values.items() if f"{name}_dark" in known}
    return gr.themes.Base(font=_fonts(palette.SANS), font_mono=_fonts(palette.MONO)).set(**chosen)


@cache
def css() -> str:
    """The page's style sheet, our colours as variables first."""
    rules = bundle.rule(".gradio-container", LIGHT, "sp") + bundle.rule(".dark .gradio-container", DARK, "sp")
    return rules + source("page.css")


def html(value: str = "", script: str = "", **more: Any) -> gr.HTML:
    """HTML component styled by our style sheet alone; ``script`` is the file that makes it a control."""
    return gr.HTML(value, apply_default_css=False, js_on_load=source(script) if script else None, **more)


@cache
def texts() -> dict[str, Any]:
    """The page's texts in tables, from ``texts.toml``."""
    return tomllib.loads(source("texts.toml"))


def _fonts(listed: str) -> list[str]:
    return [name.strip().strip('"') for name in listed.split(",")]
