"""Example scenes beside the upload: small pictures to click, each with a question, and the chosen picture's preview."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
from PIL import Image

from specviz.errors import BadInput
from specviz.figures.theme import markup
from specviz.models.vision.pictures import MOST_BYTES, Picture, open_picture
from specviz.paths import SCENES
from specviz.trace.schema import Trace

FOLDER = SCENES
SIDE = 768
"""Longest side of a picture that a page's session keeps."""
MOST_KEPT = 400_000
"""Bytes of it, since the browser keeps it over a reload: what is larger as a PNG becomes a JPEG."""

_SCRIPT = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-at]");
  if (button) trigger("choose", { at: Number(button.dataset.at) });
});
"""


@dataclass(frozen=True)
class Example:
    """One scene. ``label`` says what is in it, ``question`` is what to ask first."""

    label: str
    question: str
    data: bytes


def examples(folder: Path = FOLDER) -> tuple[Example, ...]:
    """The scenes in ``index.json``, in its order. Raises BadInput when the folder is not as it should be."""
    try:
        listed = json.loads((folder / "index.json").read_text(encoding="utf-8"))["scenes"]
        return tuple(Example(scene["label"], scene["question"], (folder / scene["file"]).read_bytes()) for scene in listed)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BadInput(f"The example scenes in {folder} cannot be read ({problem}): get them with the project.") from None


def shelf() -> gr.HTML:
    """The place of the scenes, empty until the tab is opened; ``choose`` says which was clicked."""
    return gr.HTML("", js_on_load=_SCRIPT, apply_default_css=False, elem_id="sp-scenes")


def buttons(scenes: tuple[Example, ...]) -> str:
    """The scenes as buttons."""
    listed = "".join(
        f'<button type="button" data-at="{at}" title="{markup(scene.question)}">'
        f'<img src="{address(scene.data)}" alt="{markup(scene.label)}" width="64" height="64"></button>'
        for at, scene in enumerate(scenes)
    )
    return f'<div class="sp-scenes" role="group" aria-label="Example scenes">{listed}</div>'


def uploaded_picture(path: str | None) -> tuple[bytes, tuple[str, ...]]:
    """An uploaded file as a picture of bounded size, and what was done to it. Raises BadInput when it is no picture."""
    if not path:
        raise BadInput("The picture did not arrive. Choose it again.")
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError):  # the error would name the server's own path
        raise BadInput("The picture did not arrive whole. Choose it again.") from None
    return small(open_picture(data))


def small(picture: Picture) -> tuple[bytes, tuple[str, ...]]:
    """The picture as a page's session keeps it."""
    thumbnail = picture.image.copy()
    thumbnail.thumbnail((SIDE, SIDE))
    data = _encoded(thumbnail, "PNG")
    for side, quality in ((SIDE, 92), (SIDE, 75), (SIDE // 2, 75)):
        if len(data) <= MOST_KEPT:
            break
        thumbnail.thumbnail((side, side))
        data = _encoded(thumbnail, "JPEG", quality=quality)
    return data, picture.warnings


def _encoded(image: Image.Image, kind: str, **how: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def of_run(trace: Trace) -> bytes | None:
    """The picture that a recorded run was asked about, as its model saw it; None where it is missing or damaged."""
    notes = [note for step in trace.steps[:1] for note in step.notes if note.type == "picture"]
    return _whole("".join(str(piece) for piece in notes[0].data.get("png", ()))) if notes else None


def of_preview(markup_text: str) -> bytes | None:
    """The picture in a preview that a page kept; None for anything that is no picture of that size."""
    found = re.search(r"base64,([A-Za-z0-9+/]+=*)", markup_text)
    return _whole(found[1]) if found and len(found[1]) <= 4 * (MOST_KEPT // 3 + 1) else None


def _whole(encoded: str) -> bytes | None:
    try:
        data = base64.b64decode(encoded, validate=True)
        open_picture(data)
    except (ValueError, BadInput):
        return None
    return data


def preview(data: bytes | None) -> str:
    """The chosen picture, or a word that none is chosen."""
    if data is None:
        return '<p class="sp-preview sp-nopicture">No picture yet: take a scene below, or bring your own.</p>'
    return f'<p class="sp-preview"><img src="{address(data)}" alt="The chosen picture"></p>'


def address(data: bytes) -> str:
    """A PNG, or a JPEG, as an address that needs no request."""
    kind = "jpeg" if data.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
