"""When a tree is deep enough: once the drafter's probability on the whole beam falls below a threshold.

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

from specviz.errors import BadInput
from specviz.trace.schema import Note

PUBLISHED_LEVELS = (5, 7, 9)
PUBLISHED_THRESHOLD = -0.3


def log_mass(values: Sequence[float]) -> float:
    """log of the sum of ``exp(value)``: the log of the probability that a beam holds."""
    most = max(values)
    return most + math.log(math.fsum(math.exp(value - most) for value in values))


@dataclass(frozen=True)
class BeamMass:
    """Stops at a level in ``levels`` (at any when empty) whose beam holds less than exp(``threshold``)."""

    threshold: float
    levels: tuple[int, ...] = PUBLISHED_LEVELS

    def tests(self, level: int) -> bool:
        """Whether this level's mass is looked at."""
        return not self.levels or level in self.levels

    def met(self, beams: Sequence[Sequence[float]]) -> bool:
        return self.tests(len(beams)) and log_mass(beams[-1]) < self.threshold

    def story(self, beams: Sequence[Sequence[float]], stopped: bool, limit: int) -> Note:
        # The deepest level there was room for is not tested: nothing hangs on it.
        tested = [level for level in range(1, len(beams) + 1) if level < limit and self.tests(level)]
        data = {
            "mass": [log_mass(values) for values in beams],
            "tested": tested,
            "threshold": self.threshold,
            "stopped": len(beams) if stopped else None,
            "limit": limit,
        }
        return Note("mass", data)


@dataclass(frozen=True)
class CalibratedDepth:
    """What a drafter's beams hold, measured: ``quantiles`` are the deciles of H by level, from the least to the most.

    ``threshold`` is the one that was found to cost next to no accepted tokens; ``source`` says on what.
    """

    threshold: float
    quantiles: dict[int, tuple[float, ...]]
    source: str = ""

    def save(self, path: Path) -> None:
        """As JSON, one level a line."""
        rows = [f'"{level}": {json.dumps([round(x, 4) for x in row])}' for level, row in sorted(self.quantiles.items())]
        body = ",\n".join(rows)
        head = f'"source": {json.dumps(self.source)}, "threshold": {round(self.threshold, 4)}'
        path.write_text(f'{{{head}, "quantiles": {{\n{body}\n}}}}\n', encoding="utf-8")

    @staticmethod
    def load(path: Path) -> CalibratedDepth:
        """Raises BadInput when the file is missing or is no such calibration."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            rows = {int(level): tuple(map(float, row)) for level, row in found["quantiles"].items()}
            return CalibratedDepth(float(found["threshold"]), rows, str(found.get("source", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{path.name} is no calibrated depth ({error}); make it with: python -m specviz calibrate."
            ) from error
