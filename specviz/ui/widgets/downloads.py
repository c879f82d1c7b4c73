"""Save buttons for one run: the trace file itself, the offline replay page, and other tools' formats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import gradio as gr

from specviz.errors import BadInput, SpecvizError
from specviz.trace import export
from specviz.trace.store import SUFFIX
from specviz.ui import theme
from specviz.ui.run_lookup import Archive
from specviz.ui.stream.pool import PATH, Made
from specviz.ui.stream.presence import Presence
from specviz.viewer import replay

TRACE = "trace"
FORMATS = (
    (TRACE, "Trace file", "everything, as it was recorded; opens here again"),
    ("html", "Replay page", "one file that plays this run offline in any browser"),
    ("summary", "Summary", "vLLM's field names and this app's metrics, JSON"),
    ("perfetto", "Timeline", "opens in the Perfetto UI"),
    ("graphml", "Tree, GraphML", "of the step below"),
    ("nodelink", "Tree, node-link", "of the step below, JSON for networkx"),
)
TYPES = {
    ".html": "text/html",
    ".graphml": "application/xml",
    ".jsonl": "application/x-ndjson",
    ".json": "application/json",
}


def make(archive: Archive, file_choice: Sequence[Any]) -> dict[str, str]:
    """Make the file for [run, kind, step counted from 1]. Returns its name, type and text, or an ``error`` message."""
    try:
        name, kind, step = str(file_choice[0]), str(file_choice[1])[:20], int(file_choice[2])
        trace = archive.trace(name)
        text = archive.text(name) if kind == TRACE else export.content(trace, kind, step - 1, replay.of_trace)
    except SpecvizError as error:
        return {"error": str(error)}
    except (IndexError, TypeError, ValueError, OverflowError):
        return {"error": "That is no step number; give a whole number."}
    ending = SUFFIX if kind == TRACE else export.KINDS[kind]
    stem = re.sub(r"[^a-z0-9]+", "-", f"{trace.run.method}-{trace.run.target}".lower()).strip("-")[:60]
    at = f"-step-{step}" if kind in export.OF_ONE_STEP else ""
    return {"name": f"{stem}{at}{ending}", "type": TYPES[ending[ending.rindex(".") :]], "text": text}


async def offer(archive: Archive, file_choice: Sequence[Any], owner: str = "") -> dict[str, Any]:
    """As :func:`make`, but cached, and with the text's path below the app's address instead of the text."""
    key = tuple(str(part)[:200] for part in file_choice[:3])
    if len(key) > 1 and key[1] not in export.OF_ONE_STEP:
        key = key[:2]

    def packed() -> Made:
        answer = make(archive, file_choice)
        if "error" in answer:
            raise BadInput(answer["error"])
        return Made.of(answer["name"], answer["type"], answer["text"])

    try:
        made = await archive.pool.file(key, packed, owner)
    except SpecvizError as error:
        return {"error": str(error)}
    return {"name": made.name, "type": made.media_type, "path": f"{PATH}/{made.token}", "size": made.size}


def buttons(archive: Archive, presence: Presence, run_name: str, **more: Any) -> gr.HTML:
    """The buttons; their value is the name of the run they save."""

    async def make_file(file_choice: Sequence[Any], request: gr.Request) -> dict[str, Any]:
        """Return the path of a run's file: [run, kind, step]."""
        return await offer(archive, file_choice, presence.address_of(request))

    return gr.HTML(
        run_name,
        html_template=_template(),
        js_on_load=theme.source("widgets/downloads.js"),
        server_functions=[make_file],
        apply_default_css=False,
        **more,
    )


def _template() -> str:
    items = "".join(
        f'<li><button type="button" data-kind="{kind}">{title}</button><span>{about}</span></li>'
        for kind, title, about in FORMATS
    )
    step = '<label>Step for the trees <input type="number" min="1" value="1" inputmode="numeric"></label>'
    return f'<div class="sp-downloads"><ul>{items}</ul>{step}<p class="sp-saved" role="status"></p></div>'
