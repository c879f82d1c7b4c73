"""Diagnosis of a head: comparison of its readings, and advice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specviz.drafting.networks.eagle_head import PublishedEagleHead
from specviz.figures.theme import number
from specviz.inspection.forced import Reading, TeacherForcedStats, teacher_force
from specviz.inspection.passages import Passage
from specviz.inspection.readings import Alternative, alternatives
from specviz.models.heads.heads import independent_copy
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.published import Fit

BLOCK = 8
"""Number of neighbouring positions averaged into one sample, because neighbouring errors are correlated."""
SURE, GAIN = 4.0, 0.05
"""Minimum gain of a clearly better reading, in evidence (standard errors) and in accepted tokens per chain."""
ROUNDS = 3
"""Maximum number of changed conventions."""
FOREIGN_RATE = 0.2
"""Acceptance rate at depth 1 below which a head counts as trained for another target."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of an alternative with the current reading.

    ``gain``: gain in accepted tokens per chain, with standard ``error``; ``evidence_z``: gain in evidence in standard errors.
    """

    other: Alternative
    foresight: TeacherForcedStats
    gain: float
    error: float
    evidence_z: float

    @property
    def clearly_better(self) -> bool:
        return self.evidence_z >= SURE and self.gain >= max(GAIN, self.error)


@dataclass
class Diagnosis:
    """Result of the comparisons.

    ``rounds``: comparisons with the head as loaded, then with each better reading; ``steps``: the better readings, in order.
    """

    loaded: TeacherForcedStats
    rounds: list[list[Comparison]] = field(default_factory=list)
    steps: list[Comparison] = field(default_factory=list)

    @property
    def first(self) -> list[Comparison]:
        """Comparisons with the head as loaded, best first."""
        return self.rounds[0] if self.rounds else []

    @property
    def best(self) -> TeacherForcedStats:
        return self.steps[-1].foresight if self.steps else self.loaded


def judge(
    reading: Reading, passages: Sequence[Passage], target: Fit, depth: int, theta: float | None = None, rounds: int = ROUNDS,
    report: Progress = no_progress, sections: tuple[int, ...] | None = None,
) -> Diagnosis:  # fmt: skip
    """Compare alternative readings with the head as loaded; repeat from the best one while it is clearly better.

    ``theta`` and ``sections``: see :func:`specviz.inspection.readings.alternatives`. ``rounds``: maximum number of repetitions.
    """
    exact = torch.empty(0, dtype=torch.float32, device=reading.head.head.device)
    if reading.head.head.dtype in (torch.bfloat16, torch.float16):  # slow on a CPU, and too coarse for small gains
        head = reading.head if isinstance(reading.head, PublishedEagleHead) else independent_copy(reading.head)
        reading = replace(reading, head=head.to(exact))
    base = teacher_force(reading, passages, depth)
    diagnosis = Diagnosis(base)
    for _ in range(rounds):
        compared = []
        readings = list(alternatives(reading, target, theta, sections))
        for place, other in enumerate(readings):
            report(f"Testing the head with {other.name}", place / len(readings))
            stats = teacher_force(other.reading, passages, depth)
            gain, error = _difference(stats.lengths, base.lengths)
            better, spread = _difference(stats.evidence, base.evidence)
            compared.append(Comparison(other, stats, gain, error, better / spread if spread > 0 else 0.0))
        compared.sort(key=lambda one: (one.clearly_better, one.gain), reverse=True)
        diagnosis.rounds.append(compared)
        if not compared or not compared[0].clearly_better:
            break
        diagnosis.steps.append(compared[0])
        reading, base = compared[0].other.reading, compared[0].foresight
    return diagnosis


def _difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[float, float]:
    """Return the mean paired difference and the standard error over blocks. ``first``, ``second``: by passage, [position]."""
    apart = [(one - two).float() for one, two in zip(first, second, strict=True)]
    blocks = [piece.mean() for passage in apart for piece in passage.split(BLOCK)]
    if len(blocks) < 2:
        return 0.0, math.inf
    return float(torch.cat(apart).mean()), float(torch.stack(blocks).std() / len(blocks) ** 0.5)


def advice(diagnosis: Diagnosis) -> str:
    """Return a sentence on whether the head is loaded correctly and what to change."""
    loaded, best = diagnosis.loaded, diagnosis.best
    if not loaded.places:
        return "The answers are too short to judge the head; use other prompts or allow more tokens."
    if diagnosis.steps:
        # Report the first depth with a gap of at least 0.05, else the depth with the largest gap.
        gaps = [(b or 0.0) - (a or 0.0) for a, b in zip(loaded.rates, best.rates, strict=True)]
        where = next((depth for depth, gap in enumerate(gaps) if gap >= 0.05), gaps.index(max(gaps)))
        ours, its = (number(stats.rates[where]) for stats in (loaded, best))
        depth = f" at depth {where + 1}" if where else ""
        names = " and ".join(step.other.name for step in diagnosis.steps)
        return (
            f"Acceptance is {ours}{depth} as loaded, {its} with {names}: "
            f"{'; '.join(step.other.blame for step in diagnosis.steps)}."
        )
    first = loaded.rates[0] or 0.0
    tried = "no other reading is clearly better" if diagnosis.rounds else "there are no alternative readings"
    verdict = f"Acceptance is {first:.2f} as loaded, and {tried}"
    if first < FOREIGN_RATE:
        return f"{verdict}: the drafter was trained for another target, or for another version of this target."
    return f"{verdict}: the head is read correctly." if diagnosis.rounds else f"{verdict}."
