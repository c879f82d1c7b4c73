"""Theme of the page around the stage: one Gradio theme made of the stage's own colours, and the page's style sheet."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from specviz import palette
from specviz.palette import Theme

HERE = Path(__file__).parent


@cache
def source(name: str) -> str:
    """Read a file of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


LOOK = tomllib.loads(source("theme.toml"))


def _colours(shared: Theme, hover: str) -> dict[str, str]:
    """The page's names for the shared colours, and one colour that only the page has."""
    colours = {name: getattr(shared, role) for name, role in LOOK["colours"].items()}
    return colours | {name: shared.tints[status] for name, status in LOOK["tints"].items()} | {"accent_hover": hover}


LIGHT = _colours(palette.LIGHT, LOOK["hover"]["light"])
DARK = _colours(palette.DARK, LOOK["hover"]["dark"])


@cache
def theme() -> gr.themes.Base:
    """Gradio's plainest theme in our colours, with fonts that the visitor's machine already has."""
    known = gr.themes.Base.set.__code__.co_varnames
    values = {name: (LIGHT[colour], DARK[colour]) for colour, names in LOOK["variables"].items() for name in names}
    values |= {name: (shape, shape) for name, shape in LOOK["shapes"].items()}
    chosen = {name: light for name, (light, _) in values.items()}
    chosen |= {f"{name}_dark": dark for name, (_, dark) in values.items() if f"{name}_dark" in known}
    return gr.themes.Base(font=_fonts(palette.SANS), font_mono=_fonts(palette.MONO)).set(**chosen)


@cache
def css() -> str:
    """The page's style sheet, our colours as variables first."""
    return "".join((_variables(".gradio-container", LIGHT), _variables(".dark .gradio-container", DARK), source("page.css")))


def html(value: str = "", script: str = "", **more: Any) -> gr.HTML:
    """HTML component styled by our style sheet alone; ``script`` is the file that makes it a control."""
    return gr.HTML(value, apply_default_css=False, js_on_load=source(script) if script else None, **more)


@cache
def texts() -> dict[str, Any]:
    """The page's texts in tables, from ``texts.toml``."""
    return tomllib.loads(source("texts.toml"))


def _fonts(listed: str) -> list[str]:
    return [name.strip().strip('"') for name in listed.split(",")]


def _variables(selector: str, colours: dict[str, str]) -> str:
    listed = ";".join(f"--sp-{name.replace('_', '-')}:{value}" for name, value in colours.items())
    return f"{selector}{{{listed}}}\n"
