"""Runs of inference servers on the stage: a :data:`SERVED` target decodes on its server, and no model is loaded here."""

from __future__ import annotations

import threading
from collections.abc import Generator

from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.interop.server import Answer, Ask, Server, look
from specviz.interop.server_counters import Counters, counters
from specviz.pipeline.request import Memory, Request
from specviz.trace.schema import End, Run
from specviz.ui.stream.engine import Event, Progress, Stream

NOT_SENT = "The server drafts as it was started: the form's method, its parameters, draft, top-k, top-p and device were not sent."
SERVED = "server:"
"""Prefix of the name of such a target; its address follows."""


def with_servers(stream: Stream, allowed: tuple[str, ...]) -> Stream:
    """Extend ``stream`` by the allowed servers, if any."""
    if not allowed:
        return stream

    def run(request: Request, memory: Memory, cancel: threading.Event, progress: Progress) -> Generator[Event, None, None]:
        if not request.target.startswith(SERVED):
            return stream(request, memory, cancel, progress)
        url = request.target.removeprefix(SERVED)
        if url not in allowed:
            raise BadInput(f"{url} is not one of the servers that this app may ask.")
        return _asked(url, request, cancel, progress)

    return run


def _asked(url: str, request: Request, cancel: threading.Event, progress: Progress) -> Generator[Event, None, None]:
    """Yield the events of a server's answer; the end adds the change of the server's counters."""
    progress(f"Asking {url}", None)
    server = look(url, cancel=cancel)
    before = counters(server.url, server.key, cancel)
    progress(f"Waiting for {server.title}", None)
    ask = Ask(request.prompt, request.max_new_tokens, request.temperature or 0.0, request.seed, request.raw)
    if isinstance(cancel, Stop):
        cancel.begin()
    for event in Answer(server, ask, cancel).events():
        if isinstance(event, Run):
            event = event.replace(warnings=(*event.warnings, NOT_SENT))
        yield _with_counters(event, server, before, cancel) if isinstance(event, End) else event


def _with_counters(end: End, server: Server, before: Counters | None, cancel: threading.Event) -> End:
    after = counters(server.url, server.key, cancel) if before is not None else None
    if before is None or after is None:
        return end
    counts = after.since(before)
    rates = ", ".join(f"{kept / counts.drafts:.2f}" for kept in counts.by_place) if counts.drafts > 0 else ""
    words = f"Accepted by place in the draft, by its counters over all that it served meanwhile: {rates}." if rates else ""
    return end.replace(message=" ".join(part for part in (end.message, words) if part))
