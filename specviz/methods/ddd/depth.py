"""Early stop of tree expansion: deep enough once the drafter's probability on the whole beam falls below a threshold.

Dynamic Depth Decoding (Brown et al., arXiv 2409.00142): with H = log of the summed path probabilities of the beam, a
tree that may be 11 levels deep stops at level 5, 7 or 9 if H < -0.3. The published value suits the published drafters;
for another one it is chosen from what thresholds brought with it in a calibration and what its forwards cost on this machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

from specviz.errors import BadInput
from specviz.trace.notes.drafts import BeamMassNote
from specviz.trace.schema import Note
from specviz.trees.dynamic import SpeedupMaximising

PUBLISHED_LEVELS = (5, 7, 9)
PUBLISHED_THRESHOLD = -0.3


def log_mass(values: Sequence[float]) -> float:
    """log of the sum of ``exp(value)``: the log of the probability that a beam holds."""
    most = max(values)
    return most + math.log(math.fsum(math.exp(value - most) for value in values))


@dataclass(frozen=True)
class BeamMass:
    """Stops at a level in ``levels`` (at any when empty) whose beam holds less than exp(``threshold``).

    ``below`` is the threshold as a quantile, level 1 first: the share of beams that held less when it was calibrated.
    ``forward`` is what a drafter forward costs here, in target passes of one token, where the threshold was chosen by it.
    """

    threshold: float
    levels: tuple[int, ...] = PUBLISHED_LEVELS
    below: tuple[float, ...] = ()
    forward: float | None = None

    def tests(self, level: int) -> bool:
        """Whether this level's mass is looked at."""
        return not self.levels or level in self.levels

    def met(self, beams: Sequence[Sequence[float]]) -> bool:
        return self.tests(len(beams)) and log_mass(beams[-1]) < self.threshold

    def stop_note(self, beams: Sequence[Sequence[float]], stopped: bool, limit: int) -> Note:
        # The deepest level there was room for is not tested: nothing hangs on it.
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
class CalibratedDepth:
    """What a drafter's beams held with ``drafter`` on ``target``; ``source`` says in what.

    ``thresholds`` are rows of a threshold, the tokens a round wrote with it, the bonus included, and its drafter forwards, the
    lowest threshold first; ``nodes`` a round kept on average. ``quantiles`` are the deciles of H by level, from the least to
    the most.
    """

    thresholds: tuple[tuple[float, float, float], ...]
    nodes: float
    quantiles: dict[int, tuple[float, ...]]
    drafter: str
    target: str
    source: str = ""

    def that_pays(self, pays: SpeedupMaximising, nodes: int = 0) -> float:
        """The threshold whose rounds write most tokens for their time on this machine, the shallowest of equals. ``nodes`` is the
        size of every tree where that is given."""
        verified = pays.cost[min(nodes or round(self.nodes), len(pays.cost) - 1)]
        return max(self.thresholds, key=lambda row: (row[1] / (verified + row[2] * pays.forward), row[0]))[0]

    def below(self, threshold: float) -> tuple[float, ...]:
        """``threshold`` as a quantile of H at each level, level 1 first: the share of rounds in which the beam held less."""
        deepest = max(self.quantiles, default=0)
        return tuple(_share_below(self.quantiles[level], threshold) for level in range(1, deepest + 1))

    def save(self, path: Path) -> None:
        """As JSON, one threshold and one level a line."""
        facts = {"source": self.source, "drafter": self.drafter, "target": self.target, "nodes": round(self.nodes, 2)}
        rows = ",\n".join(json.dumps([round(x, 4) for x in row]) for row in self.thresholds)
        levels = ",\n".join(
            f'"{level}": {json.dumps([round(x, 4) for x in row])}' for level, row in sorted(self.quantiles.items())
        )
        text = f'{json.dumps(facts)[:-1]}, "thresholds": [\n{rows}\n], "quantiles": {{\n{levels}\n}}}}\n'
        path.write_text(text, encoding="utf-8")

    @staticmethod
    def load(path: Path) -> CalibratedDepth:
        """Raises BadInput when the file is missing or is no such calibration."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            rows = {int(level): tuple(map(float, row)) for level, row in fields["quantiles"].items()}
            thresholds = tuple((float(value), float(tau), float(calls)) for value, tau, calls in fields["thresholds"])
            if not thresholds:
                raise ValueError("it has no thresholds")
            made_for = str(fields["drafter"]), str(fields["target"])
            return CalibratedDepth(thresholds, float(fields["nodes"]), rows, *made_for, str(fields.get("source", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{path.name} is no calibrated depth ({error}); make it with: python -m specviz calibrate ddd."
            ) from error


def _share_below(quantiles: Sequence[float], value: float) -> float:
    """Where ``value`` stands among evenly spaced quantiles, the least one first: 0 to 1, straight lines between them."""
    share = numpy.interp(value, quantiles, numpy.linspace(0, 1, len(quantiles)), left=0.0, right=1.0)
    return round(float(share), 3)
