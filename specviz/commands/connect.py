"""Send prompts to a running server, print the answers and the server's counters, and measure the speed-up of speculation."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.commands.console import Stopping, print_message, print_result, read_prompts
from specviz.errors import BadInput
from specviz.figures.theme import number
from specviz.pipeline.request import Request
from specviz.trace import store
from specviz.trace.schema import Step
from specviz.viewer.pair import rate

if TYPE_CHECKING:
    from specviz.interop.server import Server

MOST_PROMPTS = 256


def execute(options: argparse.Namespace) -> int:
    from specviz.interop import server as servers
    from specviz.interop.server_counters import counters

    prompts = [options.prompt] if options.prompts is None else read_prompts(options.prompts, MOST_PROMPTS)
    sampling = {name: getattr(options, name) for name in ("max_new_tokens", "temperature", "seed", "raw")}
    asks = [Request("autoregressive", prompt, **sampling) for prompt in prompts]
    server = servers.identify(options.url, options.key)
    print_message(f"{server.model} on {server.title} at {server.url}")
    before = counters(server.url, server.key)
    with Stopping() as stopping:
        traces = []
        for ask in asks:
            answer = servers.Answer(server, ask, stopping.event, not options.no_logprobs)
            for event in answer.events():
                stopping.started = True
                if isinstance(event, Step):
                    print_result("".join(event.pieces), end="")
            print_result()
            assert answer.trace
            traces.append(answer.trace)
            assert (end := answer.trace.end)
            numbers = end.metrics
            tau, rate = (number(numbers.get(name)) for name in ("tau", "tokens_per_second"))
            print_message(f"{numbers['emitted']} tokens in {numbers['steps']} rounds, τ {tau}, {rate} tokens per second.")
            for sentence in filter(None, (end.message, *answer.trace.run.warnings)):
                print_message(sentence)
            if stopping.event.is_set():
                break
    if options.out:
        store.write(traces[0], options.out)
        print_message(f"Wrote {options.out}.")
    after = counters(server.url, server.key)
    if before and after:
        counts = after.since(before)
        rates = ", ".join(f"{kept / counts.drafts:.2f}" for kept in counts.by_place) if counts.drafts else "no drafts"
        print_message(
            f"The server's counters: {counts.accepted} of {counts.drafted} draft tokens accepted; rates by position: {rates}."
        )
    if options.baseline and not stopping.event.is_set():
        _speedup(server, servers.identify(options.baseline, options.key), asks, options.rounds, not options.no_logprobs)
    return 0


def _speedup(server: Server, baseline: Server, asks: Sequence[Request], rounds: int, logprobs: bool) -> None:
    """Print the ratio of the two servers' speeds, with each prompt sent to both servers in alternating order."""
    from specviz.interop import server as servers

    if server.url == baseline.url:
        raise BadInput("--baseline is the same server; start a second server without speculation on another port.")
    if server.model.rsplit("/", 1)[-1] != baseline.model.rsplit("/", 1)[-1]:
        print_message(f"The speed-up compares different models: {server.model} and {baseline.model}.")
    ratios, equal = [], 0
    for turn in range(rounds):
        for ask in asks:
            pair = [server, baseline] if turn % 2 == 0 else [baseline, server]
            speeds, texts = {}, {}
            for one in pair:
                answer = servers.Answer(one, ask, logprobs=logprobs)
                list(answer.events())
                assert answer.trace and answer.trace.end
                if not (speed := rate(answer.trace)):
                    raise BadInput(f"The answer of {one.url} is one step, which includes the prefill. Ask for more tokens.")
                speeds[one.url] = speed
                texts[one.url] = answer.trace.end.text
            ratios.append(speeds[server.url] / speeds[baseline.url])
            equal += len(set(texts.values())) == 1
    middle = statistics.median(ratios)
    print_result(
        f"{middle:.2f}× the tokens per second of {baseline.url}, prefill excluded (median of {len(ratios)} pairs, "
        f"{min(ratios):.2f} to {max(ratios):.2f}); {equal} of {len(ratios)} pairs have equal texts."
    )
