"""``run --engine vllm``: run a method on a vLLM server, or print the command that starts one.

With ``--compare``, the method also runs in specviz, and an HTML page shows both runs.
"""

from __future__ import annotations

import argparse
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.commands.console import ProgressLine, Stopping, print_message, print_result
from specviz.commands.live import TerminalView
from specviz.errors import BadInput
from specviz.interop.vllm_methods import Match, compared, expressed, known
from specviz.methods.registry import get
from specviz.pipeline.request import Memory, Request
from specviz.trace import store
from specviz.trace.collect import Collector
from specviz.trace.schema import Run, Trace

if TYPE_CHECKING:
    from specviz.interop.server import Server

CLOSING_SECONDS = 10.0
"""Time in seconds to wait for the plugin's complete trace after the answer."""
WARM_UP, WARM_TOKENS = "Say hello, hello, hello.", 16
"""Prompt and token limit of the warm-up before a comparison, because the first passes of a process are slow."""


def execute(options: argparse.Namespace, request: Request) -> int:
    """Run the method on the server or, without ``--server``, print the command that starts one."""
    serving = expressed(request)
    if not options.server:
        if options.compare or options.out:
            raise BadInput("--out and --compare require a run; add the server's address, such as --server http://127.0.0.1:8000.")
        print_result(serving.command())
        for sentence in serving.differs:
            print_message(sentence)
        return 0
    from specviz.interop.server import identify

    server = identify(options.server, options.key)
    if server.kind != "vllm":
        raise BadInput(f"{server.url} is {server.title}; --engine vllm requires vLLM.")
    found = known(server)
    match = compared(serving, found)
    if match.different:
        print_result(serving.command())
        raise BadInput(
            f"{server.url} runs with different settings: {'; '.join(match.different)}. Restart the server with the command above."
        )
    remarks = []
    if match.same:
        remarks.append(f"The server's settings match the request, according to {found.source}: {', '.join(match.same)}.")
    if match.unknown:
        remarks.append(
            f"The server does not report {', '.join(match.unknown)}; these settings are assumed to match. "
            "A server with the plugin reports them."
        )
    remarks.append(f"The server's model is called {server.model}; whether the weights equal {serving.target} is not reported.")
    remarks += serving.differs
    for sentence in remarks:
        print_message(sentence)
    trace, prompt = _run_on_server(options, request, server, match, remarks)
    if options.out:
        store.write(trace, options.out)
    if options.compare:
        _compare(options, request, trace, prompt, remarks)
    return 0


def _run_on_server(
    options: argparse.Namespace, request: Request, server: Server, match: Match, remarks: list[str]
) -> tuple[Trace, tuple[int, ...]]:
    """Return the server's trace and the prompt's token ids under the server's tokenizer. May append to ``remarks``."""
    from specviz.interop.server import Answer

    if options.compare:
        list(Answer(server, replace(request, prompt=WARM_UP, max_new_tokens=WARM_TOKENS)).events())
    live = TerminalView(quiet=options.json)
    with Stopping() as stopping:
        answer = Answer(server, request, stopping.event)
        for event in answer.events():
            stopping.started = True
            live.take(_as_request(event, request, match) if isinstance(event, Run) else event)
    trace = answer.trace
    assert trace
    if options.traces:
        written = plugin_trace(options.traces, answer.name)
        if not written:
            remarks.append(
                f"The plugin wrote no complete trace of this answer to {options.traces}; the trace was made from the response."
            )
            print_message(remarks[-1])
        else:
            # The plugin records the templated prompt, but the comparison needs the raw prompt, which both runs share.
            trace = written.replace(run=written.run.replace(prompt=request.prompt, chat_template=not request.raw))
    trace = trace.replace(run=_as_request(trace.run, request, match))
    live.finish(trace, options.out)
    return trace, answer.prompt_ids


def _as_request(run: Run, request: Request, match: Match) -> Run:
    """Return the run labelled with the requested method and parameters."""
    parameters = {name: value for name, value in vars(request.parameters).items() if value is not None}
    unsure = (f"The server does not report {', '.join(match.unknown)}; assumed to match.",) if match.unknown else ()
    return run.replace(title=f"{get(request.method).title} in vLLM", method=f"vllm_{request.method}", parameters=parameters,
        warnings=(*run.warnings, *unsure),
    )  # fmt: skip


def plugin_trace(folder: Path, name: str) -> Trace | None:
    """Wait for the plugin's complete trace of the answer with request id ``name``; return None on timeout."""
    begins = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:120]
    until, waiting = time.monotonic() + CLOSING_SECONDS, threading.Event()
    while begins and time.monotonic() < until:
        for path in sorted(folder.glob(f"{begins}*{store.SUFFIX}")):
            trace = store.read(path)
            if trace.end:
                return trace
        waiting.wait(0.2)
    return None


def _compare(options: argparse.Namespace, request: Request, theirs: Trace, prompt: Sequence[int], remarks: list[str]) -> None:
    """Run the request in specviz too, and write a page with both runs."""
    from specviz.pipeline.runner import stream
    from specviz.viewer import pair

    print_message("The same run in specviz:")
    live = TerminalView(quiet=options.json)
    warm_up = replace(request, prompt=WARM_UP, max_new_tokens=WARM_TOKENS, baseline=False)
    with Stopping() as stopping, ProgressLine() as progress:
        for asked in (warm_up, request):
            collector = Collector()
            for event in stream(asked, memory=Memory(), cancel=stopping.event, progress=progress):
                progress.close()
                stopping.started = True
                collector.add(event)
                if asked is request:
                    live.take(event)
    ours = collector.trace
    ours = ours.replace(run=ours.run.replace(title=f"{ours.run.title} in specviz"))
    if not options.json:
        live.finish(ours, None)
    if ours.steps:  # lengths may differ: the server's chat template may be another version or add a system prompt
        here = ours.steps[0].position + 1
        if not prompt:
            said = f"In specviz, the templated prompt has {here} tokens; the server does not report a count."
        elif len(prompt) == here:
            said = f"The templated prompt has {here} tokens in both engines."
        else:
            said = f"The prompt has {len(prompt)} tokens in vLLM and {here} in specviz, because the chat templates differ."
        remarks.append(said)
    options.compare.write_text(pair.page(theirs, ours, remarks), encoding="utf-8")
    print_message(f"Wrote {options.compare}.")
