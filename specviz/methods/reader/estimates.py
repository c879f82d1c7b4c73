"""Running estimates of acceptance by kind of drafted token: a prior that gives way to what is observed."""

from __future__ import annotations

from collections.abc import Hashable

# A prior weighs as much as so many observations.
WEIGHT = 6.0
# Beyond so many observations of a kind the older ones fade, so that an estimate follows the text.
MOST = 200.0


class Estimates:
    """Probability of acceptance by kind of node. Kept across runs when the caller keeps it."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, float]] = {}

    def probability(self, kind: Hashable, prior: float) -> float:
        """The mean of what was seen and ``prior``, each with its weight; never quite 0 or 1."""
        hits, tried = self._counts.get(kind, (0.0, 0.0))
        return min(0.999, max(0.001, (hits + WEIGHT * prior) / (tried + WEIGHT)))

    def learn(self, kind: Hashable, accepted: bool) -> None:
        """One more node of this kind whose parent was accepted was judged."""
        hits, tried = self._counts.get(kind, (0.0, 0.0))
        fade = MOST / (MOST + 1) if tried >= MOST else 1.0
        self._counts[kind] = (hits * fade + accepted, tried * fade + 1)
