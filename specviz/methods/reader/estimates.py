"""Running estimates of acceptance by kind of drafted token: a prior updated by observations."""

from __future__ import annotations

from collections.abc import Hashable

# Weight of a prior, in observations.
WEIGHT = 6.0
# Beyond this many observations of a kind, older ones are discounted, so that an estimate follows the text.
MOST = 200.0


class Estimates:
    """Estimated acceptance probability by kind of node. The caller may keep the object across runs."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, float]] = {}

    def probability(self, kind: Hashable, prior: float) -> float:
        """Return the weighted mean of observations and ``prior``, clamped to [0.001, 0.999]."""
        hits, tried = self._counts.get(kind, (0.0, 0.0))
        return min(0.999, max(0.001, (hits + WEIGHT * prior) / (tried + WEIGHT)))

    def learn(self, kind: Hashable, accepted: bool) -> None:
        """Count one more verified node of this kind, whose parent was accepted."""
        hits, tried = self._counts.get(kind, (0.0, 0.0))
        fade = MOST / (MOST + 1) if tried >= MOST else 1.0
        self._counts[kind] = (hits * fade + accepted, tried * fade + 1)
