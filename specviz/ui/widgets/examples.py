"""Example prompts, grouped by how easy the text is to draft, and example pictures with questions."""

from __future__ import annotations

import base64
import io
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from specviz.errors import BadInput
from specviz.figures.theme import markup
from specviz.models.vision.pictures import MOST_BYTES, open_picture
from specviz.paths import ASSETS, SCENES
from specviz.trace.schema import Trace
from specviz.ui import theme

PATH = "specviz/scenes"
"""Path of the example pictures."""
SIDE = 768
"""Maximum side in pixels of an uploaded picture after shrinking."""
MOST_KEPT = 400_000
"""Maximum size of an uploaded picture in bytes, because the browser keeps the picture across reloads."""

Entry = TypeVar("Entry")


@cache
def groups(modality: str) -> list[dict[str, Any]]:
    """Return the groups of a modality's examples, from ``examples.toml``."""
    return list(tomllib.loads((ASSETS / "prompts" / "examples.toml").read_text("utf-8"))[modality])


def prompts(modality: str) -> list[tuple[str, float | None]]:
    """Return the prompt and temperature (or None) of each example."""
    return [(example["prompt"], group.get("temperature")) for group in groups(modality) for example in group["examples"]]


def picker(modality: str, elem_id: str) -> gr.HTML:
    """Return a collapsible list of examples. The event ``choose`` has the index of the clicked example."""
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
    """Return an HTML component. The event ``choose`` has the ``data-at`` attribute of the clicked button."""
    return theme.html(html, "widgets/examples.js", elem_id=elem_id)


def clicked(event: gr.EventData, entries: Sequence[Entry]) -> Entry | None:
    """Return the clicked entry, or None if the index is invalid."""
    at = getattr(event, "at", None)
    return entries[at] if isinstance(at, int) and 0 <= at < len(entries) else None


@dataclass(frozen=True)
class Scene:
    """One scene. ``label``: description. ``question``: first question about the scene. ``file``: file name."""

    label: str
    question: str
    file: str
    data: bytes


@cache
def scenes(folder: Path = SCENES) -> tuple[Scene, ...]:
    """Load the scenes in the order of ``index.json``. Raises BadInput if they cannot be read."""
    try:
        listed = json.loads((folder / "index.json").read_text(encoding="utf-8"))["scenes"]
        return tuple(Scene(one["label"], one["question"], one["file"], (folder / one["file"]).read_bytes()) for one in listed)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BadInput(f"The example scenes in {folder} cannot be read ({problem}): restore them from the repository.") from None


def route() -> Mount:
    """Return the route of the scenes' files."""
    return Mount(f"/{PATH}", StaticFiles(directory=SCENES))


def shelf() -> gr.HTML:
    """Return the scenes as buttons; the event ``choose`` carries the index of the clicked scene."""
    listed = "".join(
        f'<button type="button" data-at="{at}" title="{markup(scene.question)}">'
        f'<img src="{address(scene.data)}" alt="{markup(scene.label)}" width="64" height="64" loading="lazy"></button>'
        for at, scene in enumerate(scenes())
    )
    return clickable(f'<div class="sp-scenes" role="group" aria-label="Example scenes">{listed}</div>', "sp-scenes")


def uploaded_picture(path: str | None) -> tuple[bytes, tuple[str, ...]]:
    """Read an uploaded picture and return it, shrunk to :data:`MOST_KEPT` bytes, with warnings.

    Raises BadInput if the file is not a picture.
    """
    try:
        with Path(path or "").open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError):  # whose message would contain a path of the server
        raise BadInput("The upload is incomplete. Choose the picture again.") from None
    picture = open_picture(data)
    thumbnail = picture.image.copy()
    for kind, side, quality in (("PNG", SIDE, 100), ("JPEG", SIDE, 92), ("JPEG", SIDE, 75), ("JPEG", SIDE // 2, 75)):
        thumbnail.thumbnail((side, side))
        small = io.BytesIO()
        thumbnail.save(small, kind, quality=quality)  # a PNG ignores the quality
        if small.tell() <= MOST_KEPT:
            break
    return small.getvalue(), picture.warnings


def of_run(trace: Trace) -> bytes | None:
    """Return the preprocessed picture in a trace, or None if missing or damaged."""
    notes = [note for step in trace.steps[:1] for note in step.notes if note.type == "picture"]
    return _whole("".join(map(str, notes[0].data.get("png", ())))) if notes else None


def of_preview(markup_text: str) -> bytes | None:
    """Return the picture in the HTML of a kept preview, or None if missing, damaged or too large."""
    if scene := next((one for one in scenes() if f'"{address(one.data)}"' in markup_text), None):
        return scene.data
    found = re.search(r"base64,([A-Za-z0-9+/]+=*)", markup_text)
    return _whole(found[1]) if found and len(found[1]) <= 4 * (MOST_KEPT // 3 + 1) else None


def _whole(encoded: str) -> bytes | None:
    try:
        data = base64.b64decode(encoded, validate=True)
        open_picture(data)
    except (ValueError, BadInput):
        return None
    return data


def preview(data: bytes) -> str:
    """Return the HTML of the selected picture."""
    return f'<p class="sp-preview"><img src="{address(data)}" alt="The chosen picture"></p>'


def address(data: bytes) -> str:
    """Return the URL of a picture: the path of an example picture, or a data URL."""
    if scene := next((one for one in scenes() if one.data == data), None):
        return f"{PATH}/{scene.file}"
    kind = "jpeg" if data.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
