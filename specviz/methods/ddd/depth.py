"""Early stop of tree expansion: deep enough once the drafter's probability on the whole beam falls below a threshold.

Dynamic Depth Decoding (Brown et al., arXiv 2409.00142): with H = log of the summed path probabilities of the beam, a
tree that may be 11 levels deep stops at level 5, 7 or 9 if H < -0.3. The published value suits the published drafters;
for another one it is a quantile of that drafter's own H.
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
    """

    threshold: float
    levels: tuple[int, ...] = PUBLISHED_LEVELS
    below: tuple[float, ...] = ()

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
        ).to_note()


@dataclass(frozen=True)
class CalibratedDepth:
    """What a drafter's beams hold, measured: ``quantiles`` are the deciles of H by level, from the least to the most.

    ``threshold`` is the one whose rounds wrote most tokens for their time with ``drafter`` on ``target``; ``source`` says on
    what.
    """

    threshold: float
    quantiles: dict[int, tuple[float, ...]]
    drafter: str
    target: str
    source: str = ""

    def below(self) -> tuple[float, ...]:
        """The threshold as a quantile of H at each level, level 1 first: the share of rounds in which the beam held less."""
        deepest = max(self.quantiles, default=0)
        return tuple(_share_below(self.quantiles[level], self.threshold) for level in range(1, deepest + 1))

    def save(self, path: Path) -> None:
        """As JSON, one level a line."""
        rows = [f'"{level}": {json.dumps([round(x, 4) for x in row])}' for level, row in sorted(self.quantiles.items())]
        body = ",\n".join(rows)
        facts = {"source": self.source, "drafter": self.drafter, "target": self.target}
        head = f'{json.dumps(facts)[:-1]}, "threshold": {round(self.threshold, 4)}'
        path.write_text(f'{head}, "quantiles": {{\n{body}\n}}}}\n', encoding="utf-8")

    @staticmethod
    def load(path: Path) -> CalibratedDepth:
        """Raises BadInput when the file is missing or is no such calibration."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            rows = {int(level): tuple(map(float, row)) for level, row in fields["quantiles"].items()}
            made_for = str(fields["drafter"]), str(fields["target"])
            return CalibratedDepth(float(fields["threshold"]), rows, *made_for, str(fields.get("source", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{path.name} is no calibrated depth ({error}); make it with: python -m specviz calibrate ddd."
            ) from error


def _share_below(quantiles: Sequence[float], value: float) -> float:
    """Where ``value`` stands among evenly spaced quantiles, the least one first: 0 to 1, straight lines between them."""
    share = numpy.interp(value, quantiles, numpy.linspace(0, 1, len(quantiles)), left=0.0, right=1.0)
    return round(float(share), 3)
