"""Simulated machines on which trees are sized by learned costs: passes take what a formula says, and the clock follows them.

``python -m tests.support.simulated_costs`` prints, for each machine of a day, the throughput over the best fixed size's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from specviz.engine.cost import TIMED, PassTimes
from specviz.trees.dynamic import CurrentCosts

SIZES = (4, 8, 16, 25, 48)
"""Nodes of the trees of one size, the root not counted."""
FORWARDS = 5
TOKENS = 64
"""Of a run, and of the baseline that follows it."""


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


if __name__ == "__main__":
    for seed, first in ((0, IDLE), (1, FLAT)):
        for machine, (ratio, best, rate) in zip(DAY, simulated(seed, first), strict=True):
            print(f"pass of {machine.row:g} ms: {ratio:.2f}; best {best}, {rate:.1f} tokens/s; timed on {first.row:g} ms")
