"""Cost curve of a target pass by its width, measured on this machine, so that trees can be sized by it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from specviz.engine import threads
from specviz.engine.interfaces import Session
from specviz.engine.stop import heed
from specviz.engine.tree import DraftTree

# One row takes another kernel than two, so the step from one to two is measured, not interpolated.
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 96)
REPEATS = 5
FEWEST = 2
MILLISECONDS = 1500.0
"""What the counted rounds over all widths may take together on a slow or busy machine, which makes fewer of them: somebody
waits for the first step."""
CONTEXT = 128


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


class Timed(Protocol):
    """What can be timed: a target, or a model that verifies as one does."""

    context_length: int
    device: torch.device

    def open(self, capacity: int) -> Session:
        """A session with room for so many tokens."""


def measure(
    target: Timed, widths: Sequence[int] = WIDTHS, chains: bool = False, told: Callable[[int, int], None] = lambda *_: None
) -> CostCurve:
    """Time passes behind 128 cached tokens: medians of a few, taken in turn so that drift hits all widths alike.

    ``chains`` is for models that score chains only. ``told`` hears the number of each pass and of how many.
    """
    context = max(1, min(CONTEXT, target.context_length - 2 * max(widths)))
    widths = tuple(width for width in widths if context + width < target.context_length)
    session = target.open(context)
    try:
        session.prefill([1] * context)
        times: dict[int, list[float]] = {width: [] for width in widths}
        number, rounds = 0, REPEATS
        while len(times[widths[-1]]) <= rounds:
            for width in widths:
                number += 1
                heed()
                told(number, len(widths) * (1 + rounds))
                threads.look()
                times[width].append(_pass(target, session, width, chains))
            if len(times[widths[-1]]) == 2:  # on a GPU the first round captures graphs
                round_cost = sum(costs[-1] for costs in times.values())
                rounds = min(REPEATS, max(FEWEST, int(MILLISECONDS / round_cost)))
        # The first of each is warm-up; of two the smaller, which less has come between.
        return CostCurve(widths, tuple(statistics.median_low(times[width][1:]) for width in widths))
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
