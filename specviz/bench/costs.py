"""The costs suite: whether trees that are sized by learned costs keep up with the best fixed size, busy or idle."""

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
"""Sizes that are measured one after the other, between two runs of the default."""
LAPS = (
    "Explain how rain forms, and give two examples of where it falls most.",
    "A shop sells pens at 3 dollars each. How much do 14 pens and a 5 dollar notebook cost? Explain each step.",
)
"""Prompts, one a lap: what pays depends on what is written."""
BUSY = "beside a busy loop"


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Every method and size in turn, scene after scene."""
    laps = LAPS[: 1 if quick else None]
    ready = {arm: _prepared(target, *arm) for arm in product(methods or METHODS, (0, *chain(*PAIRS)), laps)}
    for scene in ("idle", BUSY, "idle again"):
        with busy_loops(1) if scene == BUSY else nullcontext():
            threading.Event().wait(1.0)  # for the load to settle
            for name in methods or METHODS:
                own, gains = _against_sizes(lambda *arm, name=name: ready[name, *arm], laps)
                mean = {size: statistics.geometric_mean(each) for size, each in gains.items()}
                best = min(mean, key=mean.__getitem__)
                detail = f"best fixed size {best}; {statistics.mean(own):.1f} tokens/s, over those of "
                detail += ", ".join(f"{size} nodes {gain:.2f}" for size, gain in mean.items())
                report.add(Row(f"{name}, {scene}", mean[best], goal=GOAL, detail=detail))


def _against_sizes(prepared: Callable[[int, str], Prepared], laps: Sequence[str]) -> tuple[list[float], dict[int, list[float]]]:
    """Tokens a second of the default's runs, and by size what they are over those of the runs between two of them: a machine
    drifts by a third within a minute with nothing of ours beside it. One run and its baseline come first, as when a visitor
    presses the button, and learn what has changed."""
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


def _prepared(target: str, method: str, nodes: int, prompt: str) -> Prepared:
    parameters = {"nodes": nodes} if nodes else {}
    return prepare(
        Request(method=method, prompt=prompt, target=target, max_new_tokens=REAL_TOKENS, parameters=parameters, **COMMON)
    )


def _rate(prepared: Prepared, fixed: bool = False, baseline: bool = False) -> float:
    """Tokens a second of one run's whole steps, its prefill apart. A ``fixed`` size teaches nothing: the default has to know what
    it does not try. A ``baseline`` that follows, as in the app, tells what a pass of one row costs."""
    with ThreadLimit():
        composition = prepared.compose()
        composition = replace(composition, learn=None) if fixed else composition
        decoding = prepared.decoding(composition, 0, "off", threading.Event())
        steps = [step for step in decoding.steps() if step.cut is None]
        if baseline:
            list(prepared.decoding(prepared.compose("autoregressive"), 0, "off", threading.Event()).steps())
    return sum(len(step.emitted) for step in steps) / sum(step.time.total for step in steps) * 1e9
