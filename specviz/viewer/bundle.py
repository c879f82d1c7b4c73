"""Bundling of the viewer's JavaScript and CSS into one script."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from specviz import palette
from specviz.palette import Theme
from specviz.paths import ASSETS
from specviz.trace import metrics
from specviz.trace.lengths import measured
from specviz.trace.schema import MAX_PRUNED
from specviz.viewer import modules

HERE = Path(__file__).parent / "js"
STYLES = tomllib.loads((HERE.parent / "styles.toml").read_text(encoding="utf-8"))
"""Order of the style sheets, and CSS variable names of the palette's colours and tints."""

# Comments and indentation, a quarter of the source. Comments that may be part of a string are not matched, but types are.
_COMMENT = re.compile(
    r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/)[ \t]*$| // [^\n\"'`]*$|/\*\* @type [^*\n]*\*/ ?", re.MULTILINE | re.DOTALL
)
_MARGIN = re.compile(r"^[ \t]+|\n(?=\n)", re.MULTILINE)
# Line ends that can be removed from the script.
_BREAK = re.compile(r"^((?:(?!//).)*[;{(\[,])\n", re.MULTILINE)
# Whitespace that can be removed from the style sheets, whose strings contain none of these characters.
_LINE_END = re.compile(r"(?<=[{;,:])[ \n]| (?={)")


def slim(text: str) -> str:
    """Return a source without comments and indentation. The sources must not have strings that span lines."""
    return _MARGIN.sub("", _COMMENT.sub("", text)).strip() + "\n"


LATER = ("element", "field", "play", "reading", "share", "story")
"""Folders of the modules that a page loads on demand; ``element`` is for pages other than the app."""
SOURCES = sorted(HERE.rglob("*.js"))


@cache
def style() -> str:
    """Return the style sheet, with the palette's colours and fonts as CSS variables."""
    light, names = colours(palette.LIGHT, STYLES), {role: name for name, role in STYLES["variables"].items()}
    edges = ""  # edges of the step tree
    for status, style in list(palette.LOOKS.items())[1:]:  # without the root, which has no edge
        dash = "" if style.dash == "none" else f";stroke-dasharray:{style.dash}"
        edges += f".sv-edge.sv-is-{status}{{stroke:var(--sv-{names[style.line]});stroke-width:{style.width}{dash}}}\n"
    return (
        rule(".specviz", light | {"mono": palette.MONO, "sans": palette.SANS})
        + rule(".dark .specviz", colours(palette.DARK, STYLES))
        + rule(".dark .specviz :is(.sv-picture-marks, .sv-picture-summary svg)", {name: light[name] for name in STYLES["marks"]})
        + edges
        + _sheets(STYLES["sheets"])
    )


def _sheets(names: list[str]) -> str:
    """Return these style sheets as one, without comments and indentation."""
    sheets = "".join(slim((HERE / f"{name}.css").read_text(encoding="utf-8")) for name in names)
    return _LINE_END.sub("", sheets).replace(": ", ":").replace(" {", "{")


def colours(theme: Theme, names: dict[str, Any]) -> dict[str, str]:
    """Return a theme's colours by CSS variable. ``names``: tables ``variables`` and ``tints`` of a style sheet."""
    tints = {name: theme.tints[status] for name, status in names["tints"].items()}
    return {name: getattr(theme, role) for name, role in names["variables"].items()} | tints


def rule(selector: str, variables: dict[str, str], prefix: str = "sv") -> str:
    """Return a CSS rule that sets these variables, with ``prefix`` added to the names."""
    return f"{selector} {{{';'.join(f'--{prefix}-{name}:{value}' for name, value in variables.items())}}}\n"


@cache
def script(part: str = "") -> str:
    """Return the script that defines ``SpecvizViewer``, or that of a part loaded on demand, which requires the former.

    Includes the style sheet. ``part``: a folder of :data:`LATER`. Safe to embed in HTML.
    """
    sources = {path.relative_to(HERE).with_suffix("").as_posix(): path.read_text(encoding="utf-8") for path in SOURCES}
    made = modules.ordered(_made() | sources)
    body = modules.classic([one for one in made if part == next((own for own in LATER if one.name.startswith(f"{own}/")), "")])
    end = "Object.assign(SpecvizViewer.modules, modules)" if part else "SpecvizViewer.modules = modules"
    return '(() => {\n"use strict";\n' + _BREAK.sub(r"\1", slim(body)) + end + ";\n})();\n"


STORY_RUN = "eagle3_list"
"""Recorded run that the story tells."""


def _made() -> dict[str, str]:
    """Return the sources of the modules with constants from Python, by name."""
    made = {f"{part}/style": _constants({"CSS": _sheets(STYLES[part])}) for part in ("field", "reading")}
    return {"generated": _generated(), "play/measured": _measured(), "story/recorded": _recorded(), **made}


def _generated() -> str:
    """Return the source of ``generated.js``, the module with constants from Python."""
    values = {
        "MEASURED": to_builtins(measured()),
        "LABELS": palette.LABELS,
        "LEGEND": palette.LEGEND,
        "MAX_PRUNED": MAX_PRUNED,
        "LEVEL": metrics.LEVEL,
        "DRAWN_RULES": metrics.DRAWN_RULES,
        "EQUAL_RULES": metrics.EQUAL_RULES,
        "SHAPES": _shapes(),
        "CSS": style(),
        "PAPERS": _papers(),
    }
    return _constants(values)


def _papers() -> dict[str, str]:
    """Return the number on arXiv of each method's paper, from the methods' cards."""
    found = {}
    for path in (HERE.parents[1] / "methods").rglob("*.toml"):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, card in tables.items():
            if number := card.get("paper", tables.get("paper", {})).get("arxiv"):
                found[name] = number
    return found


def _measured() -> str:
    """Return the source of ``play/measured.js``: a style sheet, and measured pass times on a CPU and on a GPU."""
    found = json.loads((ASSETS / "results.json").read_text(encoding="utf-8"))
    curves: dict[str, Any] = {"CSS": _sheets(STYLES["play"])}
    for name, title in (("CORES", "passes"), ("PASSES", "gpu_layers")):
        table = found["tables"][title]
        times = [(int(key.partition("_")[2]), row[1]) for key, row in table["rows"].items() if "_" in key]
        rows, milliseconds = zip(*times, strict=True)
        about = {"machine": found["machines"][table["machine"]], "date": table["date"]}
        curves[name] = {"rows": rows, "milliseconds": milliseconds, **about}
    return _constants(curves)


def _recorded() -> str:
    """Return the source of ``story/recorded.js``: a style sheet, the run that the story tells, and the model's size."""
    path = ASSETS / "traces" / STORY_RUN
    models = tomllib.loads((ASSETS / "catalog.toml").read_text(encoding="utf-8"))
    values = {
        "CSS": _sheets(STYLES["story"]),
        "RUN": gzip.decompress(path.with_suffix(".spectrace.jsonl.gz").read_bytes()).decode(),
        "NOTE": json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["note"],
        "WEIGHTS": models["smollm2-135m-instruct"]["parameters"],
    }
    return _constants(values)


def _constants(values: dict[str, Any]) -> str:
    compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    return "".join(f"export const {name} = {embedded(compact(value))};\n" for name, value in values.items())


def _shapes() -> dict[str, str]:
    """Return the fields of each record and note in trace.d.ts, such as ``kept:integer;value:number[]``, to validate traces."""
    declared = re.sub(r'/\*.*?\*/|type: "\w+";|[ \n]', "", (HERE / "trace.d.ts").read_text(encoding="utf-8"))
    return dict(re.findall(r"interface(?!Step\{|Note\{)(\w+)\{(.*?);\}", declared))


def embedded(text: str) -> str:
    """Escape JSON for embedding in a script element."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
