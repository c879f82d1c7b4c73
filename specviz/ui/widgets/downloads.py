"""Download of a run as a trace file, a replay page or another export format."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from specviz.errors import BadInput, SpecvizError
from specviz.figures import card
from specviz.inspection import method_source
from specviz.trace import export
from specviz.trace.store import SUFFIX
from specviz.ui import theme
from specviz.ui.archive import Archive

PATH = "specviz/file"
"""Path of the downloads, with query parameters ``run``, ``kind`` and ``step``."""
KEPT_BYTES = 64 << 20
"""Maximum size of the cache of compressed files in bytes."""
LEVEL = 5
TRACE = "trace"
SOURCE = "source"
"""Kind of the source code of a run's method, as JSON."""
EMBED = "embed"
"""Kind of the page that other sites may frame: only the stage of a recorded or shared run, without access to the app around
it.
"""
CARD = "card"
"""Kind of the picture that other sites show beside a link to a recorded or shared run."""


def make(archive: Archive, name: str, kind: str, step: int = 1) -> tuple[str, str]:
    """Return the file name and text of a run's export. ``step``: from 1. Raises SpecvizError if the export fails."""
    trace = archive.trace(name)
    if kind == SOURCE:
        return "source.json", json.dumps(method_source.of(trace.run.method))
    text = archive.text(name) if kind == TRACE else export.content(trace, kind, step - 1)
    stem = re.sub(r"[^a-z0-9]+", "-", f"{trace.run.method}-{trace.run.target}".lower()).strip("-")[:60]
    at = f"-step-{step}" if kind in export.OF_ONE_STEP else ""
    return f"{stem}{at}{SUFFIX if kind == TRACE else export.KINDS[kind]}", text


@dataclass(eq=False)
class Files:
    """Exports of runs, made in the pool; those of recorded runs are cached compressed."""

    archive: Archive
    address: Callable[[Scope], str]
    kept_bytes: int = KEPT_BYTES
    cached: OrderedDict[tuple[str, str, int], tuple[str, bytes]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def answer(self, request: Request) -> Response:
        """Return the requested file, or an error message with status 400."""
        query = request.query_params
        kind, step = query.get("kind", "")[:20], query.get("step", "1")
        of_step = kind in export.OF_ONE_STEP
        try:
            if of_step and not (step.isascii() and step.isdecimal() and len(step) < 7):
                raise BadInput("The step number is invalid; enter a whole number.")
            key = query.get("run", ""), "html" if kind == EMBED else kind, int(step) if of_step else 1
            owner = self.address(request.scope)
            if kind in (EMBED, CARD):  # the step of a page is in the URL, which the page itself reads
                await self.archive.recall(key[0], owner)
            file = self.cached.get(key)
            if not file:
                file = await self.archive.pool.do(lambda: self._made(key), ("file", key), owner)
        except SpecvizError as error:
            return PlainTextResponse(str(error), 400)
        shown = {EMBED: {"Content-Security-Policy": "sandbox allow-scripts"}, CARD: {}}
        saved = {"Content-Disposition": f'attachment; filename="{file[0]}"'}
        headers = shown.get(kind, saved) | {
            "Content-Encoding": "gzip",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(file[1], media_type=theme.texts()["types"][file[0].rpartition(".")[2]], headers=headers)

    def _made(self, key: tuple[str, str, int]) -> tuple[str, bytes]:
        if key[1] == CARD:
            name, content = "card.png", card.draw(self.archive.trace(key[0]))
        else:
            name, text = make(self.archive, *key)
            content = text.encode("utf-8", "surrogatepass")
        file = name, gzip.compress(content, LEVEL, mtime=0)
        if key[0] not in self.archive.gallery.recordings:
            return file  # of a run that may still grow
        with self._lock:  # before the job ends, so that another request finds either the job or the file
            self.cached[key] = file
            while len(self.cached) > 1 and sum(len(packed) for _, packed in self.cached.values()) > self.kept_bytes:
                self.cached.popitem(last=False)
        return file


def route(archive: Archive, address: Callable[[Scope], str]) -> Route:
    """Return the route of the downloads."""
    return Route(f"/{PATH}", Files(archive, address).answer)


SHARE = "specviz/share"
"""Path to which a page posts the name of a run to share; the response states until when the run is kept."""


def share_route(archive: Archive, address: Callable[[Scope], str]) -> Route:
    """Return the route that shares a run."""

    async def share(request: Request) -> Response:
        try:
            return PlainTextResponse(await archive.share(request.query_params.get("run", ""), address(request.scope)))
        except SpecvizError as error:
            return PlainTextResponse(str(error), 400)

    return Route(f"/{SHARE}", share, methods=["POST"])


def buttons(run_name: str, **more: Any) -> gr.HTML:
    """Return the download buttons. The value of the component is the name of the run."""
    items = ""
    for kind, (title, about) in theme.texts()["formats"].items():
        items += f'<li><button type="button" data-kind="{kind}">{title}</button><span>{about}</span></li>'
    step = '<label>Step for the trees <input type="number" min="1" value="1" inputmode="numeric"></label>'
    return theme.html(
        run_name,
        "widgets/downloads.js",
        html_template=f'<div class="sp-downloads"><ul>{items}</ul>{step}<p class="sp-saved" role="status"></p></div>',
        **more,
    )
