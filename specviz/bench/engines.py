"""Comparison of specviz with running inference servers on the same prompts.

``python -m specviz.bench.engines vllm=http://127.0.0.1:8000 llama.cpp=http://127.0.0.1:8080`` compares decoding after the first
step, without prefill. Servers are timed by the client, specviz by the recorded step times.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from specviz.errors import BadInput, SpecvizError
from specviz.interop.server import Answer, Server, identify
from specviz.pipeline.request import Memory, Request
from specviz.pipeline.runner import run
from specviz.prompts import kinds
from specviz.trace.schema import Trace

OWN = ("autoregressive", "prompt_lookup", "eagle3")
TOKENS = 96


def rate(trace: Trace) -> float:
    """Return tokens per second after the first step, since a server's first step includes the prefill."""
    steps = trace.steps[1:]
    return sum(len(step.emitted) for step in steps) / max(1e-9, sum(step.time.total for step in steps) / 1e9)


def measure(prompts: Sequence[str], servers: dict[str, Server]) -> dict[str, list[Trace]]:
    """Run every prompt with the methods ``OWN`` and on every server; return the traces by name.

    The order of methods and servers rotates from prompt to prompt.
    """
    names = [*(f"specviz {name}" for name in OWN), *servers]
    traces: dict[str, list[Trace]] = {name: [] for name in names}
    for number, prompt in enumerate(prompts):
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            traces[name].append(_trace(name, prompt, servers))
    return traces


def _trace(name: str, prompt: str, servers: dict[str, Server]) -> Trace:
    if name in servers:
        answer = Answer(servers[name], Request("autoregressive", prompt, max_new_tokens=TOKENS))
        list(answer.events())
        assert answer.trace
        return answer.trace
    return run(method=name.removeprefix("specviz "), prompt=prompt, max_new_tokens=TOKENS, memory=Memory())


def main(arguments: Sequence[str]) -> int:
    """Print one line per method and server: tokens per second (median and range), τ, and how many texts equal the baseline's.

    Raises BadInput for an argument without a URL.
    """
    servers = {}
    for argument in arguments:
        name, _, url = argument.partition("=")
        if not url:
            raise BadInput(f"{argument!r} is not of the form NAME=URL, such as vllm=http://127.0.0.1:8000.")
        servers[name] = identify(url)
    prompts = [prompt for of_kind in kinds().values() for prompt in of_kind[:2]]
    run(method="autoregressive", prompt=prompts[0], max_new_tokens=8, memory=Memory())  # loads the model
    for server in servers.values():
        list(Answer(server, Request("autoregressive", prompts[0], max_new_tokens=8)).events())
    traces = measure(prompts, servers)
    plain = [trace.end.text.strip() if trace.end else "" for trace in traces["specviz autoregressive"]]
    for name, found in traces.items():
        rates = [rate(trace) for trace in found]
        tau = sum(len(step.emitted) for trace in found for step in trace.steps[1:]) / sum(len(trace.steps) - 1 for trace in found)
        equal = sum(trace.end is not None and trace.end.text.strip() == text for trace, text in zip(found, plain, strict=True))
        print(
            f"{name:28} {statistics.median(rates):7.1f} tokens/s ({min(rates):.1f} to {max(rates):.1f}), τ {tau:.2f}, "
            f"{equal} of {len(plain)} texts equal"
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SpecvizError as problem:
        sys.exit(str(problem))
