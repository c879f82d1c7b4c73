"""Costs of a target pass by its rows, and of a drafter's forward: learned from every step that a run makes on this machine.

Trees are sized by the ratios of these costs. They change with the load and with the number of threads, so no measurement made
once stays true: a few passes are timed before a model's first run, and the runs teach the rest.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy
import torch

from specviz.engine import threads
from specviz.engine.interfaces import Session
from specviz.engine.stop import heed
from specviz.engine.tree import DraftTree
from specviz.trace.schema import Step

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows at which a cost is estimated. One row takes another kernel than two, so the step between them is learned as well."""
TIMED = (1, 2, 16, 48)
"""Rows of the passes that are timed before the first run."""
ROUNDS = 2
"""Passes of each size that count; one more comes first, as a warm-up."""
CONTEXT = 128
FORWARD = 0.07
"""A drafter forward in passes of one row, where nobody timed one: one layer of thirty and a small head."""
FORWARD_SPREAD, FORWARD_NOISE, FORWARD_DRIFT = 1.0, 0.15, 0.01
"""Standard deviations of its logarithm: from model to model, of one time, and from one time to the next."""

NOISE = 0.08
"""Standard deviation of the logarithm of a pass's time on a quiet machine."""
TOGETHER, APART = 0.3, 0.05
"""Drift of the logarithms in a second: of all sizes alike, as the load comes and goes, and of one size against the next."""
UNKNOWN = 0.5
"""How far a size may be from the usual curve, as a standard deviation of the logarithm, before any pass was timed."""
REACH = 2.0
"""Doublings of the rows over which deviations go together."""
LONGEST = 60.0
"""Seconds of drift between two passes, at most."""
TRUSTED = 2.0
"""Standard deviations beyond which a pass counts less."""
JUMP = 0.5
"""Of the square of such a pass's error: what all sizes together may have changed by."""
DISTURBED = 0.15
"""Share of the time that threads waited for a core at which a time counts half."""
SURE = 0.2
"""Uncertainty of a pass of 48 rows against one, as a standard deviation of the logarithm, above which it is timed again."""
MOVED = 0.08
"""Change of a ratio's logarithm that is worth other trees. Below it runs of one seed keep to the same ones."""
MOST_FORWARDS = 32
MOST_SPREAD = 2.0

_DOUBLINGS = numpy.log2(numpy.array(SIZES, dtype=float))
_KERNEL = numpy.exp(-0.5 * ((_DOUBLINGS[:, None] - _DOUBLINGS[None]) / REACH) ** 2)
_DRIFT = TOGETHER**2 + APART**2 * _KERNEL
_USUAL = numpy.log1p(numpy.array(SIZES) / 32)
"""A pass reads all weights whatever its rows: the usual curve is flat up to some dozens of rows, then proportional to them."""


@dataclass(frozen=True)
class CostCurve:
    """Milliseconds of one pass at each width in ``widths`` (ascending)."""

    widths: tuple[int, ...]
    milliseconds: tuple[float, ...]

    def at(self, nodes: int) -> float:
        """Milliseconds of a pass over ``nodes``, interpolated; beyond the last width extended along its last slope."""
        widths, cost = self.widths, self.milliseconds
        place = next((place for place, width in enumerate(widths) if nodes <= width), len(widths) - 1)
        if place == 0:
            return cost[0]
        low, high = widths[place - 1], widths[place]
        return cost[place - 1] + (cost[place] - cost[place - 1]) * (nodes - low) / (high - low)


def best_size(value: Sequence[float], curve: CostCurve, overhead: float = 0.0) -> int:
    """How many drafted nodes pay most: ``argmax_n (1 + value[0] + … + value[n-1]) / (cost(n + 1) + overhead)``.

    ``value`` is each node's probability of acceptance, best node first; the 1 is the bonus token; ``overhead`` is
    milliseconds a round takes besides its pass.
    """
    best, expected, most = 0, 1.0, 1.0 / (curve.at(1) + overhead)
    for nodes, probability in enumerate(value, start=1):
        expected += probability
        rate = expected / (curve.at(nodes + 1) + overhead)
        if rate > most:
            best, most = nodes, rate
    return best


@lru_cache(maxsize=512)
def _shares(rows: int) -> numpy.ndarray:
    """What each of SIZES counts in the time of a pass over ``rows``, float64 [size], interpolated between two of them."""
    return numpy.array([numpy.interp(rows, SIZES, unit) for unit in numpy.eye(len(SIZES))])


@dataclass
class _Forward:
    """A drafter forward in passes of one row, as a logarithm: the estimate, its variance, and what trees are sized by."""

    log: float = math.log(FORWARD)
    variance: float = FORWARD_SPREAD**2
    published: float = math.log(FORWARD)

    def learn(self, log: float, contention: float) -> None:
        """One took so long. A Kalman filter, as for passes: a time that misleads moves little, and the next ones much."""
        error, noise = log - self.log, FORWARD_NOISE**2 / _weight(contention)
        known = self.variance + FORWARD_DRIFT**2
        surprise = max(1.0, abs(error) / (TRUSTED * math.sqrt(known + noise)))
        gain = known / (known + noise)
        self.log += gain * error / surprise
        self.variance = (1 - gain) * known + (JUMP * error**2 if surprise > 1 else 0.0)
        if abs(self.log - self.published) > MOVED:
            self.published = self.log


class PassTimes:
    """Times of a model's passes by their rows, as all passes so far make them likely now. Safe to use from several threads.

    A Kalman filter over the logarithms at SIZES. Its sizes drift together far more than apart: a pass over any number of rows
    tells how fast the machine is at the moment, and moves its own size, and the neighbouring ones, against the rest.
    """

    def __init__(self, logs: Sequence[float] | None = None, spread: Sequence[float] | None = None) -> None:
        """As nobody knows them; or from ``logs`` [size] of milliseconds, whose ratios to one row are uncertain by ``spread``."""
        apart = numpy.full(len(SIZES), UNKNOWN) if spread is None else numpy.clip(spread, APART, MOST_SPREAD)
        self._logs = _USUAL.copy() if logs is None else numpy.array(logs, dtype=float)
        together = 9.0 if logs is None else UNKNOWN**2
        self._covariance = together + numpy.outer(apart, apart) * _KERNEL
        self._forwards: dict[str, _Forward] = {}
        self._at, self._busy = -math.inf, 0.0
        self._lock = threading.Lock()
        self._curve = self._current()

    @property
    def curve(self) -> CostCurve:
        """What trees are sized by: the same curve until a ratio has moved."""
        return self._curve

    @property
    def row(self) -> float:
        """Milliseconds of a pass of one row at the moment."""
        return math.exp(float(self._logs[0]))

    def learn(self, rows: int, milliseconds: float, contention: float = 0.0, now: float | None = None) -> None:
        """A pass over ``rows`` took so long. ``contention`` is the share of the time that threads waited for a core, ``now`` the
        second of it."""
        if not 1 <= rows <= SIZES[-1] or milliseconds <= 0:
            return
        now = time.monotonic() if now is None else now
        with self._lock:
            self._covariance += min(max(now - self._at, 0.0), LONGEST) * _DRIFT
            self._at, self._busy = now, 0.95 * self._busy + 0.05 * min(contention, 1.0)
            share = _shares(rows) * numpy.exp(self._logs)
            error, slope = math.log(milliseconds / share.sum()), share / share.sum()
            spread = self._covariance @ slope
            known, noise = float(slope @ spread), NOISE**2 / _weight(contention)
            surprise = max(1.0, abs(error) / (TRUSTED * math.sqrt(known + noise)))
            gain = spread / (known + noise * surprise)
            self._logs += gain * error
            self._covariance -= numpy.outer(gain, spread)
            if surprise > 1:  # something came between, or the machine as a whole is another from now on: the next passes tell
                self._covariance += JUMP * error**2
            curve = self._current()
            if numpy.abs(_ratios(curve) - _ratios(self._curve)).max() > MOVED:
                self._curve = curve

    def learn_forward(self, name: str, milliseconds: float, contention: float = 0.0) -> None:
        """A forward of the drafter called ``name``, the building of the tree included, took so long."""
        with self._lock:
            while name not in self._forwards and len(self._forwards) >= MOST_FORWARDS:
                self._forwards.pop(next(iter(self._forwards)))
            self._forwards.setdefault(name, _Forward()).learn(math.log(milliseconds) - float(self._logs[0]), contention)

    def forward(self, name: str, timed: Callable[[], float] | None = None) -> float:
        """Passes of one row that such a forward costs. What nobody knows yet is timed, by ``timed`` in milliseconds."""
        if name not in self._forwards and timed is not None:
            self.learn_forward(name, timed(), threads.contention())
        return math.exp(self._forwards.get(name, _Forward()).published)

    @property
    def sure(self) -> bool:
        """Whether the passes that were seen tell what a large one costs, as far as the machine was quiet."""
        against = _shares(TIMED[-1]) - _shares(1)
        return float(against @ self._covariance @ against) + self._busy**2 < SURE**2

    def like(self) -> PassTimes:
        """A beginning for the same model on another number of threads: these times, of which little is certain."""
        other = PassTimes(self._logs.tolist(), [UNKNOWN / 2] * len(SIZES))
        other._forwards = {name: _Forward(one.log, UNKNOWN**2, one.published) for name, one in self._forwards.items()}
        return other

    def state(self) -> dict[str, Any]:
        """What a file keeps."""
        with self._lock:
            against = numpy.diag(self._covariance) + self._covariance[0, 0] - 2 * self._covariance[0]
            return {
                "logs": [round(float(log), 4) for log in self._logs],
                "spread": [round(math.sqrt(max(float(one), 0.0) + self._busy**2), 4) for one in against],
                "forwards": {
                    name: [round(one.log, 4), round(math.sqrt(one.variance), 4)] for name, one in self._forwards.items()
                },
            }

    @staticmethod
    def of(state: Mapping[str, Any], age: float = 0.0) -> PassTimes:
        """From a file's ``state`` of so many days ago. Raises KeyError, TypeError or ValueError where it is no such state."""
        spread = [math.hypot(float(one), 0.1 * math.sqrt(age)) for one in state["spread"]]
        times = PassTimes([float(log) for log in state["logs"]], spread)
        logs = times._logs
        if logs.shape != (len(SIZES),) or not (numpy.abs(logs) < 20).all() or not numpy.isfinite(spread).all():
            raise ValueError("these are no times of passes")
        for name, (log, apart) in list(state["forwards"].items())[:MOST_FORWARDS]:
            if not abs(log) < 20 or not 0 <= apart < 20:
                raise ValueError("these are no times of forwards")
            times._forwards[str(name)] = _Forward(float(log), max(float(apart), FORWARD_NOISE / 3) ** 2, float(log))
        return times

    def _current(self) -> CostCurve:
        """The estimate of now; more rows never cost less."""
        return CostCurve(SIZES, tuple(numpy.maximum.accumulate(numpy.exp(self._logs)).tolist()))


def _weight(contention: float) -> float:
    """How much a time counts that was measured while threads waited for a core."""
    return 1 / (1 + contention / DISTURBED)


def _ratios(curve: CostCurve) -> numpy.ndarray:
    logs = numpy.log(curve.milliseconds)
    return logs - logs[0]


@dataclass
class RunCosts:
    """Costs that one run is sized by, and that its steps teach. ``times`` gives those of the present number of threads, timed
    first when it is called with True; ``name`` tells what it drafts with from what others do."""

    times: Callable[[bool], PassTimes]
    name: str = ""
    _drafting: set[str] = field(default_factory=set)
    _sized: bool = False

    def curve(self) -> CostCurve:
        """What a pass costs by its rows. Where that is uncertain it is timed on the first call, which is before the run."""
        return self._times().curve

    def forward(self, rows: int, timed: Callable[[], float] | None = None, taught: bool = True) -> float:
        """Milliseconds of a drafter forward over ``rows`` nodes. ``taught``: this run drafts by such forwards alone."""
        name = f"{self.name} {rows}"
        if taught:
            self._drafting.add(name)
        times = self._times()
        return times.forward(name, timed) * times.curve.at(1)

    def _times(self) -> PassTimes:
        first, self._sized = not self._sized, True
        return self.times(first)

    def learn(self, step: Step) -> None:
        """Take the times of a finished step. What a step costs may size later ones, never itself."""
        if step.passes != 1:
            return
        times, contention = self.times(False), threads.contention()
        times.learn(step.padded, step.time.verify / 1e6, contention)
        if step.draft_calls and step.time.draft:
            for name in self._drafting:
                times.learn_forward(name, step.time.draft / 1e6 / step.draft_calls, contention)


class Timed(Protocol):
    """What can be timed: a target, or a model that verifies as one does."""

    @property
    def context_length(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def open(self, capacity: int) -> Session:
        """A session with room for so many tokens."""


def measure(
    target: Timed, learn: Callable[[int, float], None], sizes: Sequence[int] = TIMED, chains: bool = False,
    progress: Callable[[float], None] = lambda share: None,
) -> None:  # fmt: skip
    """Time a few passes behind 128 cached tokens, sizes in turn so that drift hits all alike, and teach them.

    ``chains`` is for models that score chains only. ``progress`` hears which share of the passes was made.
    """
    context = max(1, min(CONTEXT, target.context_length - 2 * max(sizes)))
    sizes = tuple(size for size in sizes if context + size < target.context_length)
    session = target.open(context)
    try:
        session.prefill([1] * context)
        for number in range(len(sizes) * (1 + ROUNDS)):
            heed()
            progress(number / (len(sizes) * (1 + ROUNDS)))
            threads.look()
            size = sizes[number % len(sizes)]
            milliseconds = _pass(target, session, size, chains)
            if number >= len(sizes):  # the first of each is warm-up; on a GPU it captures a graph
                learn(size, milliseconds)
    finally:
        session.close()


def _pass(target: Timed, session: Session, width: int, chains: bool) -> float:
    parents = range(-1, width - 1) if chains else [-1] + [0] * (width - 1)
    tree = DraftTree.of([1] * width, parents, target.device)
    started = time.perf_counter()
    logits = session.score(tree).logits
    session.rewind(session.length)
    if logits.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3
