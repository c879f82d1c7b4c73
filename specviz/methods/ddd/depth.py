"""Early stopping of tree expansion: no deeper level is drafted once the beam's total drafter probability is below a threshold.

Dynamic Depth Decoding (Brown et al., arXiv 2409.00142) tests H, the log of the beam's summed path probabilities. A tree of at
most 11 levels stops at level 5, 7 or 9 if H < -0.3. The published threshold suits the published drafters. For another drafter,
calibration rounds and the cost of its forwards on this machine determine the threshold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specviz.drafting.trees.dynamic import SpeedupMaximising
from specviz.errors import BadInput
from specviz.trace.notes.drafts import BeamMassNote
from specviz.trace.schema import Note

PUBLISHED_LEVELS = (5, 7, 9)
PUBLISHED_THRESHOLD = -0.3
CANDIDATES = tuple(-place / 20 for place in range(120, 0, -1))
"""Candidate thresholds: -6 to -0.05."""


def log_mass(values: Sequence[float]) -> float:
    """Return the log of the sum of ``exp(value)``: the log probability mass of a beam."""
    most = max(values)
    return most + math.log(math.fsum(math.exp(value - most) for value in values))


@dataclass(frozen=True)
class BeamMass:
    """Stop rule: stop at a level in ``levels`` (any if empty) whose beam holds less than exp(``threshold``).

    ``below`` is the threshold as a quantile, level 1 first: the fraction of calibration beams that held less. ``forward`` is the
    cost of a drafter forward, in target passes of one token, if the threshold depends on it.
    """

    threshold: float
    levels: tuple[int, ...] = PUBLISHED_LEVELS
    below: tuple[float, ...] = ()
    forward: float | None = None

    def tests(self, level: int) -> bool:
        """Whether this level's mass is tested."""
        return not self.levels or level in self.levels

    def met(self, beams: Sequence[Sequence[float]]) -> bool:
        return self.tests(len(beams)) and log_mass(beams[-1]) < self.threshold

    def stop_note(self, beams: Sequence[Sequence[float]], stopped: bool, limit: int) -> Note:
        # The deepest possible level is not tested, since no deeper one could follow.
        tested = [level for level in range(1, len(beams) + 1) if level < limit and self.tests(level)]
        return BeamMassNote(
            mass=[log_mass(values) for values in beams],
            tested=tested,
            threshold=self.threshold,
            stopped=len(beams) if stopped else None,
            limit=limit,
            below=self.below,
            forward=self.forward,
        ).to_note()


@dataclass(frozen=True)
class CalibratedRound:
    """One round at full depth: log ``mass`` of the beam at each level, level 1 first, and the number of accepted tokens."""

    mass: tuple[float, ...]
    accepted: int


@dataclass(frozen=True)
class CalibratedDepth:
    """Greedy rounds that ``drafter`` drafted for ``target`` without a threshold, with ``nodes`` kept per tree on average.
    ``source`` describes their origin."""

    rounds: tuple[CalibratedRound, ...]
    nodes: float
    drafter: str
    target: str
    source: str = ""

    def brings(
        self, threshold: float, depth: int, levels: Sequence[int] = (), nodes: int = 0, ahead: int = 1
    ) -> tuple[float, float]:  # fmt: skip
        """Return the mean tokens per round with this threshold, bonus included, and the mean drafter forwards.

        Trees have at most ``depth`` levels and ``nodes`` nodes (0: as calibrated); ``levels`` are tested (all if empty).
        Tokens accepted deeper than the stop count as lost. Levels are drafted ``ahead`` at a time before one is tested.
        """
        tokens = forwards = 0
        rule = BeamMass(threshold, tuple(levels))
        for one in self.rounds:
            deepest = min(depth, len(one.mass))
            light = (level for level in range(1, deepest) if one.mass[level - 1] < threshold and rule.tests(level))
            end = next(light, deepest)
            tokens += 1 + min(one.accepted, end, nodes or end)
            forwards += min(deepest, ahead * math.ceil(end / ahead))
        return tokens / len(self.rounds), forwards / len(self.rounds)

    def threshold_that_pays(
        self, pays: SpeedupMaximising, depth: int, levels: Sequence[int] = (), nodes: int = 0, ahead: int = 1
    ) -> float:  # fmt: skip
        """Return the threshold with the most tokens per unit of time on this machine, the highest one if tied. For the other
        arguments see :meth:`brings`."""
        verified, best = pays.cost[min(nodes or round(self.nodes), len(pays.cost) - 1)], (0.0, 0.0)
        for threshold in CANDIDATES:
            tokens, forwards = self.brings(threshold, depth, levels, nodes, ahead)
            best = max(best, (float(tokens / (verified + forwards * pays.forward)), threshold))
        return best[1]

    def below(self, threshold: float) -> tuple[float, ...]:
        """Return ``threshold`` as a quantile at each level, level 1 first: the fraction of rounds whose beam held less."""
        deepest = max(len(one.mass) for one in self.rounds)
        columns = ([one.mass[level] for one in self.rounds if len(one.mass) > level] for level in range(deepest))
        return tuple(round(sum(mass < threshold for mass in column) / len(column), 3) for column in columns)

    def save(self, path: Path) -> None:
        """Save as JSON, one round per line: the accepted count, then the mass by level."""
        facts = {"source": self.source, "drafter": self.drafter, "target": self.target, "nodes": round(self.nodes, 2)}
        rows = ",\n".join(json.dumps([one.accepted, *(round(mass, 3) for mass in one.mass)]) for one in self.rounds)
        path.write_text(f'{json.dumps(facts)[:-1]}, "rounds": [\n{rows}\n]}}\n', encoding="utf-8")

    @staticmethod
    def load(path: Path) -> CalibratedDepth:
        """Load from JSON. Raises BadInput if the file is missing or not such a calibration."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            rounds = tuple(CalibratedRound(tuple(map(float, mass)), int(accepted)) for accepted, *mass in fields["rounds"])
            if not rounds or not all(one.mass for one in rounds):
                raise ValueError("it has no rounds")
            made_for = float(fields["nodes"]), str(fields["drafter"]), str(fields["target"])
            return CalibratedDepth(rounds, *made_for, str(fields.get("source", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{path.name} is no calibrated depth ({error}); make it with: python -m specviz calibrate ddd."
            ) from error
