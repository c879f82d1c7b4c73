"""The costs suite: whether trees that are sized by learned costs keep up with the best fixed size, busy or idle.

First a simulated machine, whose passes take what a formula says, then this one, beside a busy loop and without it.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy

from specviz.bench.contention import busy_loops
from specviz.bench.kit import COMMON
from specviz.bench.report import Report, Row
from specviz.engine.cost import TIMED, PassTimes
from specviz.engine.threads import ThreadLimit
from specviz.request import Request
from specviz.runner import Prepared, prepare
from specviz.trees.dynamic import CurrentCosts

SIZES = (4, 8, 16, 25, 48)
"""Nodes of the trees of one size, the root not counted."""
GOAL = 0.9
FORWARDS = 5
TOKENS = 64
"""Of a simulated run, and of the baseline that follows it."""


@dataclass(frozen=True)
class Machine:
    """A simulated one: milliseconds of a pass of one row and of a drafter forward, what each further row adds below and above
    eight of them, as a share of the first one, and how long threads wait for a core."""

    row: float
    forward: float
    few: float
    many: float
    contention: float = 0.0

    def cost(self, rows: int) -> float:
        """Milliseconds of a pass over ``rows``."""
        return self.row * (1 + self.few * (rows - 1) + self.many * max(0, rows - 8))


IDLE = Machine(16.6, 1.8, few=0.004, many=0.02)
STEEP = Machine(24.0, 2.9, few=0.05, many=0.03)
"""One core is left of two: its arithmetic is scarce, the memory is not."""
FLAT = Machine(27.0, 2.4, few=0.0, many=0.012, contention=0.6)
"""Threads wait for each other in every pass, whatever it computes."""
DAY = (IDLE, STEEP, IDLE, FLAT, IDLE)
SECONDS = 20.0
"""That each of them lasts."""
_RANKS = numpy.arange(1.0, 151.0)
"""Of a round's candidates by their probability, which falls off as a power of it."""


class Simulation:
    """Runs of a dynamic tree and their baselines on simulated machines, one after the other. The clock is the simulated one."""

    def __init__(self, seed: int, fixed: int = 0) -> None:
        self.times, self.fixed, self.clock = PassTimes(), fixed, 0.0
        self._random, self._rounds = numpy.random.default_rng(seed), 0
        given = numpy.random.default_rng(seed)
        self._offers = [given.beta(4, 2) * _RANKS ** -given.uniform(0.9, 1.5) for _ in range(199)]
        self._pays = CurrentCosts(lambda: self.times.curve, lambda: self.times.forward("d") * self.times.curve.at(1))

    def time_passes(self, machine: Machine) -> None:
        """What is timed before a first run."""
        for rows in TIMED * 2:
            self._pass(machine, rows)

    def throughput(self, machine: Machine, seconds: float = SECONDS) -> float:
        """Tokens a second of the drafted runs of so many seconds, baselines between them."""
        end, tokens, spent = self.clock + seconds, 0.0, 0.0
        while self.clock < end:
            written, started = 0.0, self.clock
            while written < TOKENS:
                written += self._round(machine)
            tokens, spent = tokens + written, spent + self.clock - started
            for _ in range(TOKENS):
                self._pass(machine, 1)
        return tokens / spent

    def _round(self, machine: Machine) -> float:
        """The tokens that a round may expect to write, of a tree that is sized by what earlier rounds took."""
        offers = self._offers[self._rounds % len(self._offers)]
        self._rounds += 1
        nodes = min(len(offers), self.fixed or self._pays(offers.tolist(), FORWARDS))
        self._pass(machine, 1 + nodes)
        drafting = machine.forward * self._random.lognormal(0.0, 0.1)
        self.clock += FORWARDS * drafting / 1e3
        if not self.fixed:
            self.times.learn_forward("d", drafting, machine.contention)
        return 1 + float(offers[:nodes].sum())

    def _pass(self, machine: Machine, rows: int) -> None:
        """Now and then something comes between."""
        late = self._random.uniform(1.5, 4.0) if self._random.random() < 0.03 else 1.0
        milliseconds = machine.cost(rows) * self._random.lognormal(0.0, 0.06) * late
        self.clock += milliseconds / 1e3
        if not self.fixed:
            self.times.learn(rows, milliseconds, machine.contention, self.clock)


def simulated(
    seed: int, first: Machine = IDLE, day: Sequence[Machine] = DAY, seconds: float = SECONDS
) -> list[tuple[float, int, float]]:  # fmt: skip
    """For each machine of a ``day`` the throughput of the sizes that costs choose, over the best fixed one's, which size that
    is, and its tokens a second. A few passes were timed beforehand on the ``first``."""

    def all_day(fixed: int) -> list[float]:
        simulation = Simulation(seed, fixed)
        simulation.time_passes(first)
        return [simulation.throughput(machine, seconds) for machine in day]

    chosen, by_size = all_day(0), {size: all_day(size) for size in SIZES}
    found = []
    for place, own in enumerate(chosen):
        best = max(SIZES, key=lambda size: by_size[size][place])
        found.append((own / by_size[best][place], best, by_size[best][place]))
    return found


METHODS = ("eagle2", "eagle3")
PAIRS, REAL_TOKENS = ((4, 8), (16, 25)), 40
"""Sizes that are measured one after the other, between two runs of the default."""
LAPS = (
    "Explain how rain forms, and give two examples of where it falls most.",
    "A shop sells pens at 3 dollars each. How much do 14 pens and a 5 dollar notebook cost? Explain each step.",
)
"""Prompts, one a lap: what pays depends on what is written."""
SCENES = ("idle", "beside a busy loop", "idle again")


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """The simulated machine's day, then every method and size in turn, scene after scene."""
    for seed, first in ((0, IDLE), (1, FLAT)):
        for machine, (ratio, best, rate) in zip(DAY, simulated(seed, first), strict=True):
            name = f"simulated, pass of {machine.row:g} ms, {machine.cost(32) / machine.row:.1f} times that over 32 rows"
            report.add(
                Row(name, ratio, goal=GOAL, detail=f"best fixed size {best}, {rate:.1f} tokens/s; timed on {first.row:g} ms")
            )
    laps = LAPS[: 1 if quick else None]
    ready = {arm: _prepared(target, *arm) for arm in product(methods or METHODS, (0, *chain(*PAIRS)), laps)}
    for scene in SCENES:
        with busy_loops(1) if scene == SCENES[1] else nullcontext():
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
