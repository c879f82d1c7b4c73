"""Delivery of the page: compressed, with the viewer's script in a separate file that a browser caches between visits.

Gradio compresses files by extension, but neither the page nor the answers to its events. It repeats a component's part of the
page's head for each such component.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specviz.viewer import bundle

FOLDER = "specviz/viewer"
LEAST_BYTES = 1000
"""Smallest response that is worth compressing."""
LEVEL = 5
"""Half the time of level 9 for two per cent more bytes."""
KEPT = "public, max-age=31536000, immutable"


@cache
def script_address() -> str:
    """Path of the viewer's script below the app's address; it changes with the script."""
    return f"{FOLDER}/{hashlib.sha256(bundle.script().encode()).hexdigest()[:16]}.js"


ARRIVING = """<script>(() => {{
const query = new URLSearchParams(location.search), tabs = {tabs};
window.specvizTab = query.get("tab") || tabs[query.get("trace")] || "";
if (window.specvizTab) document.documentElement.classList.add("sp-arriving");
}})()</script>"""
"""Finds the tab that an address names before anything is drawn; page.js opens it, and until then no other tab is visible."""


def head(tabs: Mapping[str, str]) -> str:
    """HTML for the page's head: the script, and the tab of each recorded run outside the first tab, by the run's name."""
    embedded_tabs = bundle.embedded(json.dumps(tabs))
    return f'<script data-specviz src="{script_address()}"></script>{ARRIVING.format(tabs=embedded_tabs)}'


def script_route() -> Route:
    """Route that serves the script."""
    headers = {"Cache-Control": KEPT}
    return Route(f"/{script_address()}", lambda request: Response(bundle.script(), headers=headers, media_type="text/javascript"))


@dataclass(eq=False)
class Preload:
    """Middleware that makes the browser fetch the script while it is still reading the page."""

    app: ASGIApp

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
    """Middleware for every response. Event streams pass unbuffered."""
    return [Middleware(GZipMiddleware, minimum_size=LEAST_BYTES, compresslevel=LEVEL), Middleware(Preload)]
