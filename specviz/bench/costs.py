"""The costs suite: trees sized by learned costs against the best fixed size, on an idle and on a busy machine."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, product

from specviz.bench.contention import busy_loops
from specviz.bench.kit import COMMON
from specviz.bench.report import Report, Row
from specviz.engine.threads import ThreadLimit
from specviz.pipeline.request import Request
from specviz.pipeline.runner import Prepared, prepare

GOAL = 0.9
METHODS = ("eagle2", "eagle3")
PAIRS, REAL_TOKENS = ((4, 8), (16, 25)), 40
"""Pairs of fixed tree sizes, each timed between two runs sized by cost, and the number of tokens per run."""
LAPS = (
    "Explain how rain forms, and give two examples of where it falls most.",
    "A shop sells pens at 3 dollars each. How much do 14 pens and a 5 dollar notebook cost? Explain each step.",
)
"""Prompts. Several, since the optimal size depends on the text."""
BUSY = "next to a busy loop"


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Measure every method and size on an idle machine, next to a busy loop, and on the idle machine again."""
    laps = LAPS[: 1 if quick else None]
    common = {"target": target, "max_new_tokens": REAL_TOKENS, **COMMON}
    ready = {
        (method, nodes, prompt): prepare(
            Request(method=method, prompt=prompt, parameters={"nodes": nodes} if nodes else {}, **common)
        )
        for method, nodes, prompt in product(methods or METHODS, (0, *chain(*PAIRS)), laps)
    }
    for scene in ("idle", BUSY, "idle again"):
        with busy_loops(1) if scene == BUSY else nullcontext():
            threading.Event().wait(1.0)  # until the load settles
            for name in methods or METHODS:
                own, gains = _against_sizes(lambda *arm, name=name: ready[name, *arm], laps)
                mean = {size: statistics.geometric_mean(each) for size, each in gains.items()}
                best = min(mean, key=mean.__getitem__)
                detail = (
                    f"{statistics.mean(own):.1f} tokens/s sized by cost; best fixed size {best} nodes; "
                    f"speed-up over {', '.join(f'{size} nodes {gain:.2f}' for size, gain in mean.items())}"
                )
                report.add(Row(f"{name}, {scene}", mean[best], goal=GOAL, detail=detail))


def _against_sizes(prepared: Callable[[int, str], Prepared], laps: Sequence[str]) -> tuple[list[float], dict[int, list[float]]]:
    """Return the tokens per second of each run sized by cost and, by fixed size, the speed-ups over that size, one per prompt.

    Runs are interleaved, since even the speed of an idle machine drifts by a third within a minute. As in the app, a first run
    and an autoregressive baseline learn the costs under the current load.
    """
    own, gains = list[float](), {size: list[float]() for size in chain(*PAIRS)}
    _rate(prepared(0, laps[0]), baseline=True)
    for prompt in laps:
        own.append(_rate(prepared(0, prompt)))
        for pair in PAIRS:
            fixed = {size: _rate(prepared(size, prompt), fixed=True) for size in pair}
            own.append(_rate(prepared(0, prompt)))
            for size in pair:
                gains[size].append(statistics.mean(own[-2:]) / fixed[size])
    return own, gains


def _rate(prepared: Prepared, fixed: bool = False, baseline: bool = False) -> float:
    """Return the tokens per second of one run, excluding prefill and steps cut short at the end.

    ``fixed``: the run updates no costs, so that sizing by cost learns only from runs sized by cost. ``baseline``: an
    autoregressive run follows, as in the app, and updates the cost of a pass over one row.
    """
    with ThreadLimit():
        composition = prepared.compose()
        composition = replace(composition, learn=None) if fixed else composition
        decoding = prepared.decoding(composition, 0)
        steps = [step for step in decoding.steps() if step.cut is None]
        if baseline:
            list(prepared.decoding(prepared.compose("autoregressive"), 0).steps())
    return sum(len(step.emitted) for step in steps) / sum(step.time.total for step in steps) * 1e9
