"""Medians of paired runs and the sign test: how likely so many pairs lean one way where none should."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided probability of a split as uneven as that of the signs, were either sign as likely; ties are left out.

    1 where nothing differs.
    """
    more, less = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    pairs = more + less
    tail = sum(math.comb(pairs, count) for count in range(min(more, less) + 1))
    return min(1.0, 2 * tail / 2**pairs)


@dataclass(frozen=True)
class Paired:
    """Ratios of pairs: above 1, the first of a pair took longer."""

    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        """Range, number of pairs and the sign test against 1, for a row's detail."""
        chance = sign_test([ratio - 1 for ratio in self.ratios])
        return f"{min(self.ratios):.2f}–{max(self.ratios):.2f} over {len(self.ratios)} pairs, sign test p = {chance:.2g}"
