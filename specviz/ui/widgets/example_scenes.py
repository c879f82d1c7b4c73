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
"""Maximum bytes of that picture, since the browser keeps it across reloads; a larger PNG becomes a JPEG."""

_SCRIPT = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-at]");
  if (button) trigger("choose", { at: Number(button.dataset.at) });
});
"""


@dataclass(frozen=True)
class Example:
    """One scene. ``label`` describes it, ``question`` is a first question about it."""

    label: str
    question: str
    data: bytes


def examples(folder: Path = FOLDER) -> tuple[Example, ...]:
    """Load the scenes in ``index.json``, in its order. Raises BadInput when they cannot be read."""
    try:
        listed = json.loads((folder / "index.json").read_text(encoding="utf-8"))["scenes"]
        return tuple(Example(scene["label"], scene["question"], (folder / scene["file"]).read_bytes()) for scene in listed)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BadInput(f"The example scenes in {folder} cannot be read ({problem}): get them with the project.") from None


def shelf() -> gr.HTML:
    """Container of the scenes, empty until the tab is opened; the event ``choose`` carries the clicked one's index."""
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
    """Read an uploaded file as a picture of bounded size, and return it with warnings. Raises BadInput if it is no picture."""
    if not path:
        raise BadInput("The picture did not arrive. Choose it again.")
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError):  # the error would name the server's own path
        raise BadInput("The picture did not arrive whole. Choose it again.") from None
    return small(open_picture(data))


def small(picture: Picture) -> tuple[bytes, tuple[str, ...]]:
    """Shrink a picture for a page's session, and return it with its warnings."""
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
    """Return the picture of a recorded run's prompt, as its model saw it; None if it is missing or damaged."""
    notes = [note for step in trace.steps[:1] for note in step.notes if note.type == "picture"]
    return _whole("".join(str(piece) for piece in notes[0].data.get("png", ()))) if notes else None


def of_preview(markup_text: str) -> bytes | None:
    """Return the picture in a preview that a page kept; None for any other text and for one that is too large."""
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
    """HTML of the chosen picture, or a hint to choose one."""
    if data is None:
        return '<p class="sp-preview sp-nopicture">No picture yet: take a scene below, or bring your own.</p>'
    return f'<p class="sp-preview"><img src="{address(data)}" alt="The chosen picture"></p>'


def address(data: bytes) -> str:
    """Return a PNG or a JPEG as a data URL."""
    kind = "jpeg" if data.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
