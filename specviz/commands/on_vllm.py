"""``run --engine vllm``: run a method on a running vLLM, or print the command that starts one; both runs on one page."""

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
"""Seconds that the plugin may take to close a trace after the answer."""
WARM_UP, WARM_TOKENS = "Say hello, hello, hello.", 16
"""Prompt and token limit of both engines' warm-up before a comparison: a process's first passes are slower than the rest."""


def execute(options: argparse.Namespace, request: Request) -> int:
    """Run the method on the server; without one, print the command that starts it."""
    serving = expressed(request)
    if not options.server:
        if options.compare or options.out:
            raise BadInput("Without --server nothing runs; name the running vLLM, such as --server http://127.0.0.1:8000.")
        print_result(serving.command())
        for sentence in serving.differs:
            print_message(sentence)
        return 0
    from specviz.interop.server import look

    server = look(options.server, options.key)
    if server.kind != "vllm":
        raise BadInput(f"{server.url} is {server.title}; --engine vllm requires vLLM.")
    found = known(server)
    match = compared(serving, found)
    if match.different:
        print_result(serving.command())
        raise BadInput(f"{server.url} runs other settings: {'; '.join(match.different)}. Use the command above.")
    remarks = []
    if match.same:
        remarks.append(f"The server's settings match the request, according to {found.source}: {', '.join(match.same)}.")
    if match.unknown:
        remarks.append(
            f"The server does not report, and is assumed to match: {', '.join(match.unknown)}. "
            "With the plugin it reports its settings."
        )
    remarks.append(f"It serves {server.model}. It does not report whether its weights are those of {serving.target}.")
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
    """Return the server's run and the token ids of the prompt as the server read it; add to the ``remarks`` on the run."""
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
    assert trace is not None
    if options.traces:
        written = plugin_trace(options.traces, answer.name)
        if written is None:
            remarks.append(f"The plugin left no complete trace of this answer in {options.traces}; the client's view is shown.")
            print_message(remarks[-1])
        else:
            # The plugin records the prompt after the chat template; both runs share the prompt before it.
            trace = written.replace(run=written.run.replace(prompt=request.prompt, chat_template=not request.raw))
    trace = trace.replace(run=_as_request(trace.run, request, match))
    live.finish(trace, options.out)
    return trace, answer.prompt_ids


def _as_request(run: Run, request: Request, match: Match) -> Run:
    """Return the run under the method's name and parameters, which the server states or is assumed to have."""
    parameters = {name: value for name, value in vars(request.parameters).items() if value is not None}
    unsure = (f"Assumed to match; the server does not report: {', '.join(match.unknown)}.",) if match.unknown else ()
    return run.replace(title=f"{get(request.method).title} in vLLM", method=f"vllm_{request.method}", parameters=parameters,
        warnings=(*run.warnings, *unsure),
    )  # fmt: skip


def plugin_trace(folder: Path, name: str) -> Trace | None:
    """Wait for the plugin's complete trace of the answer with the server's id ``name``; return None if none arrives in time."""
    begins = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:120]
    until, waiting = time.monotonic() + CLOSING_SECONDS, threading.Event()
    while begins and time.monotonic() < until:
        for path in sorted(folder.glob(f"{begins}*{store.SUFFIX}")):
            trace = store.read(path)
            if trace.end is not None:
                return trace
        waiting.wait(0.2)
    return None


def _compare(options: argparse.Namespace, request: Request, theirs: Trace, prompt: Sequence[int], remarks: list[str]) -> None:
    """Run the request here too, and write the page of both runs."""
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
    if ours.steps:  # chat templates differ in their version or in their system prompt
        here = ours.steps[0].position + 1
        if not prompt:
            said = f"In specviz the prompt has {here} tokens with its chat template; the server does not report its own count."
        elif len(prompt) == here:
            said = f"Both engines read a prompt of {here} tokens."
        else:
            said = f"The server read a prompt of {len(prompt)} tokens, specviz one of {here}: their chat templates differ."
        remarks.append(said)
    options.compare.write_text(pair.page(theirs, ours, remarks), encoding="utf-8")
    print_message(f"Wrote {options.compare}.")
