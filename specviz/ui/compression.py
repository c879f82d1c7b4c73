"""Delivery of the page: compressed, with the viewer's script in a file of its own that a browser keeps between visits.

Gradio compresses files by name, but neither the page nor the answers to its events. Whatever a component puts into the page's
head it writes once for each such component.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specviz.trace.replay import embedded
from specviz.viewer import bundle

FOLDER = "specviz/viewer"
LEAST_BYTES = 1000
"""Of an answer that is worth compressing."""
LEVEL = 5
"""Half the time of level 9 for two per cent more bytes."""
KEPT = "public, max-age=31536000, immutable"


@cache
def script_address() -> str:
    """Where the viewer's script is, below the app's own address; another script has another address."""
    return f"{FOLDER}/{hashlib.sha256(bundle.script().encode()).hexdigest()[:16]}.js"


ARRIVING = """<script>(() => {{
const query = new URLSearchParams(location.search), tabs = {tabs};
window.specvizTab = query.get("tab") || tabs[query.get("trace")] || "";
if (window.specvizTab) document.documentElement.classList.add("sp-arriving");
}})()</script>"""
"""Says which tab an address asks for before anything is drawn; page.js opens it, and until then no other tab is seen."""


def head(tabs: Mapping[str, str]) -> str:
    """What the page's head says of the script, and of recorded runs that stand in other tabs than the first: name to tab."""
    embedded_tabs = embedded(json.dumps(tabs))
    return f'<script data-specviz src="{script_address()}"></script>{ARRIVING.format(tabs=embedded_tabs)}'


def script_route() -> Route:
    """The address of the script."""

    def script(request: Request) -> Response:
        return Response(bundle.script(), media_type="text/javascript", headers={"Cache-Control": KEPT})

    return Route(f"/{script_address()}", script)


class Preload:
    """The middleware that has the browser fetch the script while it is still reading the page."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_link(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.append("Link", f"<{script_address()}>; rel=preload; as=script")
            await send(message)

        is_page = scope["type"] == "http" and scope["path"].rstrip("/") == scope.get("root_path", "").rstrip("/")
        await self.app(scope, receive, with_link if is_page else send)


def middleware() -> list[Any]:
    """What every answer of the app goes through. Streams of events are passed on unbuffered."""
    return [Middleware(GZipMiddleware, minimum_size=LEAST_BYTES, compresslevel=LEVEL), Middleware(Preload)]
