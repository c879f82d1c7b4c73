"""Costs of target passes and drafter forwards on this machine, learned from the steps of runs.

Ratios of these costs determine tree sizes. Costs change with the machine's load and the number of threads. A few passes are
therefore timed before a model's first run, and the estimates are updated during runs.
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
"""Numbers of rows for which a cost is estimated. One row uses a different kernel from two, so both are included."""
TIMED = (1, 2, 16, 48)
"""Rows of the passes that are timed before the first run."""
ROUNDS = 2
"""Timed passes of each size, after one warm-up pass."""
CONTEXT = 128
DRAFT_COST = 0.07
"""Default cost of a drafter forward in one-row passes, as for one layer of thirty and a small head."""
FORWARD_SPREAD, FORWARD_NOISE, FORWARD_DRIFT = 1.0, 0.15, 0.01
"""Standard deviations of a forward's log cost: between models, of one measurement, and of the drift between measurements."""

NOISE = 0.08
"""Standard deviation of the log time of a pass on a quiet machine."""
COMMON_DRIFT, SIZE_DRIFT = 0.3, 0.05
"""Drift of log times per second: common to all sizes (machine load), and of individual sizes."""
PRIOR_SPREAD = 0.5
"""Standard deviation of a size's log cost around the prior curve, before any pass is timed."""
CORRELATION_LENGTH = 2.0
"""Length scale, in doublings of the rows, over which deviations are correlated."""
LONGEST = 60.0
"""Maximum time in seconds over which drift accumulates between two passes."""
OUTLIER = 2.0
"""Standard deviations beyond which a pass is down-weighted."""
JUMP = 0.5
"""Fraction of a down-weighted pass's squared error that is added to the variance common to all sizes."""
HALF_WEIGHT_CONTENTION = 0.15
"""Contention (fraction of time that threads waited for a core) at which a measurement counts half."""
CERTAIN_SPREAD = 0.2
"""Largest standard deviation of the log cost ratio of 48 rows to one row at which no passes are timed again."""
CURVE_TOLERANCE = 0.08
"""Smallest change of a log cost ratio that changes trees, so that runs with the same seed keep the same trees."""
MOST_FORWARDS = 32
MOST_SPREAD = 2.0

_DOUBLINGS = numpy.log2(numpy.array(SIZES, dtype=float))
_KERNEL = numpy.exp(-0.5 * ((_DOUBLINGS[:, None] - _DOUBLINGS[None]) / CORRELATION_LENGTH) ** 2)
_DRIFT = COMMON_DRIFT**2 + SIZE_DRIFT**2 * _KERNEL
_PRIOR = numpy.log1p(numpy.array(SIZES) / 32)
"""Prior curve. A pass reads all weights, so the cost is flat up to a few dozen rows, then proportional to rows."""


@dataclass(frozen=True)
class CostCurve:
    """Milliseconds of one pass at each width in ``widths`` (ascending)."""

    widths: tuple[int, ...]
    milliseconds: tuple[float, ...]

    def at(self, nodes: int) -> float:
        """Return the milliseconds of a pass over ``nodes``, interpolated, or extrapolated beyond the last width."""
        widths, cost = self.widths, self.milliseconds
        place = next((place for place, width in enumerate(widths) if nodes <= width), len(widths) - 1)
        if place == 0:
            return cost[0]
        low, high = widths[place - 1], widths[place]
        return cost[place - 1] + (cost[place] - cost[place - 1]) * (nodes - low) / (high - low)


def best_size(value: Sequence[float], curve: CostCurve) -> int:
    """Return the optimal number of drafted nodes: ``argmax_n (1 + value[0] + … + value[n-1]) / cost(n + 1)``.

    ``value``: acceptance probabilities of the nodes, best first; the 1 is the bonus token.
    """
    best, expected, most = 0, 1.0, 1.0 / curve.at(1)
    for nodes, probability in enumerate(value, start=1):
        expected += probability
        rate = expected / curve.at(nodes + 1)
        if rate > most:
            best, most = nodes, rate
    return best


@lru_cache(maxsize=512)
def _shares(rows: int) -> numpy.ndarray:
    """Return the interpolation weight [size] of each of SIZES in the time of a pass over ``rows``."""
    return numpy.array([numpy.interp(rows, SIZES, unit) for unit in numpy.eye(len(SIZES))])


@dataclass
class _Forward:
    """Log cost of a drafter forward in one-row passes: estimate, variance, and the ``published`` value that sizes trees."""

    log: float = math.log(DRAFT_COST)
    variance: float = FORWARD_SPREAD**2
    published: float = math.log(DRAFT_COST)

    def learn(self, log: float, contention: float) -> None:
        """Update from one measurement with a Kalman filter.

        An outlier moves the estimate little, but raises the variance, so that the next measurements move the estimate more.
        """
        error, noise = log - self.log, FORWARD_NOISE**2 / _weight(contention)
        known = self.variance + FORWARD_DRIFT**2
        surprise = max(1.0, abs(error) / (OUTLIER * math.sqrt(known + noise)))
        gain = known / (known + noise)
        self.log += gain * error / surprise
        self.variance = (1 - gain) * known + (JUMP * error**2 if surprise > 1 else 0.0)
        if abs(self.log - self.published) > CURVE_TOLERANCE:
            self.published = self.log


class PassTimes:
    """Estimates of a model's pass times by rows, from all passes so far. Thread-safe.

    A Kalman filter over log times at SIZES. Sizes mostly drift together, so a pass of any size measures the machine's current
    speed. A pass also moves nearby sizes relative to the rest.
    """

    def __init__(self, logs: Sequence[float] | None = None, spread: Sequence[float] | None = None) -> None:
        """Start from the prior, or from ``logs`` [size] of milliseconds; ``spread`` [size] is the deviation of their ratios to
        one row."""
        apart = numpy.full(len(SIZES), PRIOR_SPREAD) if spread is None else numpy.clip(spread, SIZE_DRIFT, MOST_SPREAD)
        self._logs = _PRIOR.copy() if logs is None else numpy.array(logs, dtype=float)
        together = 9.0 if logs is None else PRIOR_SPREAD**2
        self._covariance = together + numpy.outer(apart, apart) * _KERNEL
        self._forwards: dict[str, _Forward] = {}
        self._at, self._busy = -math.inf, 0.0
        self._lock = threading.Lock()
        self._curve = self._current()

    @property
    def curve(self) -> CostCurve:
        """Cost curve that sizes trees; unchanged until a log ratio has moved by ``CURVE_TOLERANCE``."""
        return self._curve

    @property
    def row(self) -> float:
        """Current milliseconds of a one-row pass."""
        return math.exp(float(self._logs[0]))

    def learn(self, rows: int, milliseconds: float, contention: float = 0.0, now: float | None = None) -> None:
        """Update from the time of a pass over ``rows``.

        ``contention``: fraction of time that threads waited for a core. ``now``: time of the measurement in seconds, by default
        the monotonic clock's.
        """
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
            surprise = max(1.0, abs(error) / (OUTLIER * math.sqrt(known + noise)))
            gain = spread / (known + noise * surprise)
            self._logs += gain * error
            self._covariance -= numpy.outer(gain, spread)
            if surprise > 1:  # an interruption, or a lasting change of speed; the next passes decide which
                self._covariance += JUMP * error**2
            curve = self._current()
            if numpy.abs(_ratios(curve) - _ratios(self._curve)).max() > CURVE_TOLERANCE:
                self._curve = curve

    def learn_forward(self, name: str, milliseconds: float, contention: float = 0.0) -> None:
        """Update from the time of one forward of the drafter ``name``, tree building included."""
        with self._lock:
            while name not in self._forwards and len(self._forwards) >= MOST_FORWARDS:
                self._forwards.pop(next(iter(self._forwards)))
            self._forwards.setdefault(name, _Forward()).learn(math.log(milliseconds) - float(self._logs[0]), contention)

    def forward(self, name: str, timed: Callable[[], float] | None = None) -> float:
        """Return a forward's cost in one-row passes. ``timed`` measures a forward that has no estimate yet (milliseconds)."""
        if name not in self._forwards and timed is not None:
            self.learn_forward(name, timed(), threads.contention())
        return math.exp(self._forwards.get(name, _Forward()).published)

    @property
    def sure(self) -> bool:
        """Whether the cost ratio of a large pass is certain enough; contention adds uncertainty."""
        against = _shares(TIMED[-1]) - _shares(1)
        return float(against @ self._covariance @ against) + self._busy**2 < CERTAIN_SPREAD**2

    def like(self) -> PassTimes:
        """Return initial estimates for another number of threads: the same times with a large variance."""
        other = PassTimes(self._logs.tolist(), [PRIOR_SPREAD / 2] * len(SIZES))
        other._forwards = {name: _Forward(one.log, PRIOR_SPREAD**2, one.published) for name, one in self._forwards.items()}
        return other

    def state(self) -> dict[str, Any]:
        """Return the state to store in a file."""
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
        """Restore from a file's ``state``, ``age`` days old. Raises KeyError, TypeError or ValueError if the state is invalid."""
        spread = [math.hypot(float(one), 0.1 * math.sqrt(age)) for one in state["spread"]]
        times = PassTimes([float(log) for log in state["logs"]], spread)
        logs = times._logs
        if logs.shape != (len(SIZES),) or not (numpy.abs(logs) < 20).all() or not numpy.isfinite(spread).all():
            raise ValueError("the pass times are invalid")
        for name, (log, apart) in list(state["forwards"].items())[:MOST_FORWARDS]:
            if not abs(log) < 20 or not 0 <= apart < 20:
                raise ValueError("the forward times are invalid")
            times._forwards[str(name)] = _Forward(float(log), max(float(apart), FORWARD_NOISE / 3) ** 2, float(log))
        return times

    def _current(self) -> CostCurve:
        """Return the current estimates, made non-decreasing in rows."""
        return CostCurve(SIZES, tuple(numpy.maximum.accumulate(numpy.exp(self._logs)).tolist()))


def _weight(contention: float) -> float:
    return 1 / (1 + contention / HALF_WEIGHT_CONTENTION)


def _ratios(curve: CostCurve) -> numpy.ndarray:
    logs = numpy.log(curve.milliseconds)
    return logs - logs[0]


@dataclass
class RunCosts:
    """Costs that size one run's trees and are updated by the run's steps.

    ``times``: function that returns the pass times for the current number of threads; True makes it time uncertain passes first.
    ``name``: identification of the run's drafter.
    """

    times: Callable[[bool], PassTimes]
    name: str = ""
    _drafting: set[str] = field(default_factory=set)
    _sized: bool = False

    def curve(self) -> CostCurve:
        """Return the cost curve of a pass. The first call, before the run, times passes if the curve is uncertain."""
        return self._times().curve

    def forward(self, rows: int, timed: Callable[[], float] | None = None, updates_cost: bool = True) -> float:
        """Return the milliseconds of a drafter forward over ``rows`` nodes. With ``updates_cost``, the run's draft times update
        this cost.
        """
        name = f"{self.name} {rows}"
        if updates_cost:
            self._drafting.add(name)
        times = self._times()
        return times.forward(name, timed) * times.curve.at(1)

    def _times(self) -> PassTimes:
        first, self._sized = not self._sized, True
        return self.times(first)

    def learn(self, step: Step) -> None:
        """Update from the times of a finished step."""
        if step.passes != 1:
            return
        times, contention = self.times(False), threads.contention()
        times.learn(step.padded, step.time.verify / 1e6, contention)
        if step.draft_calls and step.time.draft:
            for name in self._drafting:
                times.learn_forward(name, step.time.draft / 1e6 / step.draft_calls, contention)


class Timed(Protocol):
    """Model that can be timed: a target, or a model that verifies like one."""

    @property
    def context_length(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def open(self, capacity: int) -> Session:
        """Open a session with room for ``capacity`` tokens."""


def measure(
    target: Timed, learn: Callable[[int, float], None], sizes: Sequence[int] = TIMED, chains: bool = False,
    progress: Callable[[float], None] = lambda share: None,
) -> None:  # fmt: skip
    """Time a few passes after 128 cached tokens, cycling through ``sizes`` so that drift affects all sizes alike.

    ``learn`` receives the rows and milliseconds of each pass, ``progress`` the fraction of passes done. ``chains``: whether the
    model scores only chains.
    """
    context = max(1, min(CONTEXT, target.context_length - 2 * max(sizes)))
    sizes = tuple(size for size in sizes if context + size < target.context_length)
    session = target.open(context)
    try:
        session.prefill([1] * context)
        for number in range(len(sizes) * (1 + ROUNDS)):
            heed()
            progress(number / (len(sizes) * (1 + ROUNDS)))
            threads.adjust()
            size = sizes[number % len(sizes)]
            milliseconds = _pass(target, session, size, chains)
            if number >= len(sizes):  # the first pass of each size is a warm-up; on a GPU it captures a graph
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
