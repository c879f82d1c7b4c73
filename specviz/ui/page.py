"""The app's page: header and tabs, handlers for opening and closing, and HTTP delivery.

Responses are compressed, which Gradio does only for some files. The viewer's script is a separate file that browsers cache.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from typing import Any
from urllib.parse import urlencode

import gradio as gr
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specviz.errors import SpecvizError
from specviz.models.pass_times import measured
from specviz.trace import metrics
from specviz.ui import api, before_gradio, browser_state, theme
from specviz.ui.access import LEAST_BODY, Gate, Turns, Watch
from specviz.ui.app_state import AppState
from specviz.ui.classroom.server import Classroom
from specviz.ui.deep_links import RunTabs
from specviz.ui.stream import sse
from specviz.ui.tabs import about_tab, learn_tab
from specviz.ui.tabs.compare_tab import CompareTab
from specviz.ui.tabs.events import QUIET
from specviz.ui.tabs.methods_tab import MethodsTab
from specviz.ui.tabs.run_tab import ImageTab, TextTab, VisionTab
from specviz.ui.tabs.traces_tab import TracesTab
from specviz.ui.widgets import downloads, examples, panels
from specviz.viewer import bundle

FOLDER = "specviz/viewer"
LEAST_BYTES = 1000
"""Minimum size of a compressed response."""
LEVEL = 5
"""Compression level; level 9 takes twice the time and saves only two per cent."""
KEPT = "public, max-age=31536000, immutable"


@cache
def script_address(part: str = "") -> str:
    """Return the path of a script of :func:`bundle.script`, which contains a hash of the script."""
    return f"{FOLDER}/{hashlib.sha256(bundle.script(part).encode()).hexdigest()[:16]}.js"


ARRIVING = """<script>(() => {{
const query = new URLSearchParams(location.search), tabs = {tabs};
window.specvizTab = query.get("tab") || tabs[query.get("trace")] || (query.has("story") ? "story" : "");
if (window.specvizTab) document.documentElement.classList.add("sp-arriving");
}})()</script>"""
"""JavaScript that determines the tab from the URL and hides the tabs until page.js opens the right one."""


def head(tabs: Mapping[str, str]) -> str:
    """Return HTML for the page's head. ``tabs``: tab by name of recorded run, for runs outside the first tab."""
    later = f'data-reading="{script_address("reading")}" data-play="{script_address("play")}"'
    script = f'<script data-specviz src="{script_address()}" {later}></script>'
    return script + ARRIVING.format(tabs=bundle.embedded(json.dumps(tabs)))


def script_route(part: str = "") -> Route:
    """Return the route of a script."""
    answer = partial(Response, headers={"Cache-Control": KEPT}, media_type="text/javascript")
    return Route(f"/{script_address(part)}", lambda request: answer(bundle.script(part)))


GENERIC = re.compile(rb'<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*')
PREVIEW = """<meta property="og:type" content="website"><meta property="og:title" content="{title}">
<meta property="og:description" content="{text}"><meta property="og:image" content="{image}">
<meta name="twitter:card" content="summary_large_image">"""


async def preview(shared: AppState, scope: Scope, owner: str) -> str:
    """Return HTML that describes the URL's lesson, pair or run, by default the first run, to sites that show links.

    Empty without a run.
    """
    archive, request = shared.archive, Request(scope)
    query = request.query_params
    lesson = learn_tab.course(shared).get(query["lesson"]) if "lesson" in query else None
    name = lesson.trace if lesson else query.get("trace") or query.get("left") or archive.gallery.default_name
    beside = archive.gallery.recordings.get(query.get("right", ""))
    try:
        await archive.recall(name, owner)
        known = await archive.of([name], lambda: archive.outline(name), owner)
    except SpecvizError:
        return ""
    base = request.base_url.replace(scheme=request.headers.get("x-forwarded-proto", scope["scheme"]))
    pair = f" beside {beside.run.title}" if beside else ""
    speed = known.end and known.end.metrics.get("speedup")
    texts = {
        "title": lesson.title if lesson else f"{known.run.title}{pair} on {known.run.target}",
        "text": (f"{metrics.SpeedComparison(speed).sentence}. " if speed else "") + f"“{known.run.prompt[:200]}”",
        "image": f"{base}{downloads.PATH}?{urlencode({'kind': downloads.CARD, 'run': name})}",
    }
    return PREVIEW.format_map({part: escape(words) for part, words in texts.items()})


@dataclass(eq=False)
class Preload:
    """Middleware that adds a preload header for the viewer's script to the page, and the preview of the URL's run."""

    app: ASGIApp
    shared: AppState
    address: Callable[[Scope], str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") != scope.get("root_path", "").rstrip("/"):
            return await self.app(scope, receive, send)
        started: list[Message] = []

        async def changed(message: Message) -> None:
            if message["type"] == "http.response.start":
                return started.append(message)
            if started:
                headers, status = MutableHeaders(scope=started[0]), started[0]["status"]
                if status == 200 and headers.get("content-type", "").startswith("text/html"):
                    headers.append("Link", f"<{script_address()}>; rel=preload; as=script")
                    described = (await preview(self.shared, scope, self.address(scope))).encode("utf-8", "replace")
                    message["body"] = GENERIC.sub(b"", message["body"]).replace(b"<head>", b"<head>" + described, 1)
                    headers["content-length"] = str(len(message["body"]))
                await send(started.pop())
            await send(message)

        await self.app(scope, receive, changed)


SESSIONS = 256
"""Maximum number of sessions whose state Gradio keeps."""

OTHER_THREADS = 40
"""Number of threads in addition to one per running or waiting run."""

QUEUE = 64
"""Maximum number of events in Gradio's queue."""

OF_API = ("api_info", "api_info_as_input", "api_info_as_output", "example_inputs")
"""Component methods that return API documentation."""

VISION, IMAGE = "Vision-language", "Image"
"""Titles of two tabs; a link names them in lower case."""

MASTHEAD = """
<a class="sp-skip" href="#stage" data-to=".specviz[tabindex]">Skip to the stage</a>
<a class="sp-skip" href="#settings" data-to=".sp-side :is(select, input, textarea, button)">Skip to the settings</a>
<h1 class="sp-brand">specviz</h1>
<button type="button" id="sp-link" class="sp-theme" aria-label="Share" title="Share what is shown"
aria-expanded="false" data-script="%s">
<svg viewBox="0 0 16 16" width="15" height="15" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round"
aria-hidden="true"><path d="M6.5 9.5l3-3M7 4.5l1.6-1.6a2.9 2.9 0 0 1 4.1 4.1L11 8.7"/>
<path d="M9 11.5l-1.6 1.6a2.9 2.9 0 0 1-4.1-4.1L5 7.3"/></svg></button>
<div id="sp-sharing" class="sp-sharing" hidden></div>
<button type="button" id="sp-theme" class="sp-theme" aria-label="Use dark colours">
<span aria-hidden="true">◐</span></button>
"""

LATER = """new IntersectionObserver((seen, self) => {
if (!seen[0].isIntersecting) return;
self.disconnect();
window.specvizPage.load("%s", () => window.SpecvizViewer.%s(element, window.specvizPage, props, watch, trigger));
}).observe(element)"""
"""JavaScript that loads a tab's script when the tab is first visible."""


def build(shared: AppState) -> gr.Blocks:
    """Build the page."""
    with gr.Blocks(title="specviz: speculative decoding, live", fill_width=True, analytics_enabled=False) as page:
        theme.html(MASTHEAD % script_address("share"), elem_classes="sp-masthead")
        with gr.Tabs(elem_classes="sp-tabs") as tabs:
            with gr.Tab("Text", id="text"):
                text = TextTab(shared)
            with gr.Tab(VISION, id="vision") as opened:
                vision = VisionTab(shared, opened)
            with gr.Tab(IMAGE, id="image") as opened:
                image = ImageTab(shared, opened)
            run_tabs = RunTabs(shared, tabs, {"text": text, "vision": vision, "image": image})
            with gr.Tab("Compare", id="compare") as opened:
                CompareTab(shared, opened, text)
            with gr.Tab("Methods", id="methods") as opened:
                MethodsTab(shared, opened, text, run_tabs, LATER % (script_address("field"), "field"))
            for part in ("story", "play"):
                with gr.Tab(part.capitalize(), id=part):
                    gr.HTML("", js_on_load=LATER % (script_address(part), part), apply_default_css=False)
            if course := learn_tab.course(shared):
                with gr.Tab("Learn", id="learn") as opened:
                    learn_tab.LearnTab(shared, course, opened)
            with gr.Tab("Traces", id="traces") as opened:
                TracesTab(shared, opened, text, run_tabs)
            with gr.Tab("About", id="about") as opened:
                about_tab.build(shared, opened)
        api.register(shared)

        page.load(
            run_tabs.arrive, [gr.Textbox(visible=False), *run_tabs.runs], run_tabs.outputs, js=browser_state.TAKE, queue=False,
            **QUIET,
        ).then(None, js="() => window.specvizPage.arrive()")  # fmt: skip
        shown = [tab.hardware for tab in run_tabs.by_id.values()]
        page.load(lambda: [panels.hardware(shared.hardware.sentence())] * len(shown), None, shown, queue=False, **QUIET)

        def leave(request: gr.Request) -> None:
            shared.pages.leave(request.session_hash)
            shared.presence.leave(page.state_holder, request.session_hash)

        page.unload(leave)
    page.queue(max_size=QUEUE, default_concurrency_limit=None, api_open=False)
    # Cache the configurations, which Gradio would recompute on the event loop for each new session (30 ms per request).
    for block in page.blocks.values():
        for name in ("get_config", *(() if block.skip_api else OF_API)):
            if hasattr(block, name):
                setattr(block, name, partial(copy, getattr(block, name)()))
    return page


def launch_options(shared: AppState) -> dict[str, Any]:
    """Return the options of ``launch``.

    ``show_error`` is off because exceptions other than ``gr.Error`` may contain paths of the server.
    """
    settings, visitor = shared.settings, shared.presence.address_in
    tabs = {VisionTab.modality: VISION.lower(), ImageTab.modality: IMAGE.lower()}
    most_bytes = settings.max_upload_mb * 1_000_000
    return {
        "theme": theme.theme(),
        "css": theme.css(),
        "js": theme.source("page.js"),
        "head": head({one.name: tabs[one.run.modality] for one in shared.archive.gallery.of(*tabs)}),
        "footer_links": [],
        "run_history": False,
        "ssr_mode": False,
        "share": False,
        "enable_monitoring": False,
        "max_file_size": most_bytes,
        "server_port": settings.port,
        "show_error": False,
        "state_session_capacity": SESSIONS,
        "max_threads": settings.max_waiting + OTHER_THREADS,
        "app_kwargs": {
            "lifespan": before_gradio.swept,
            "routes": [
                sse.route(shared.live.streams, visitor),
                downloads.route(shared.archive, visitor),
                downloads.share_route(shared.archive, visitor),
                *map(script_route, ("", *bundle.LATER)),
                examples.route(),
                Route("/specviz/costs", lambda _: JSONResponse(measured(shared.hardware.sentence(), settings.target))),
            ],
            "middleware": [
                Middleware(Gate, settings=lambda: shared.settings, expose=shared.expose),
                Middleware(Classroom, settings=lambda: shared.settings, address=visitor, ask=learn_tab.asking(shared)),
                Middleware(Turns, address=visitor, most_bytes=max(LEAST_BODY, most_bytes)),
                Middleware(Watch, presence=shared.presence),
                Middleware(GZipMiddleware, minimum_size=LEAST_BYTES, compresslevel=LEVEL),  # does not buffer event streams
                Middleware(Preload, shared=shared, address=visitor),
            ],
        },
    }
