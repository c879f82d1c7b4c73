"""Full-information losses: the acceptance every drafter would have had on the verified text.

HedgeSpec (arXiv 2510.20064) with a correction. For a chain drafted from ``start``, let g be the mass that the drafter's
distribution shares with the target's: one minus their total variation distance. Let a be the ratio min(1, q/p) of the token that
was really written. Along a text from the target's distribution, ``1 + sum over k of a_1 ... a_(k-1) g_k`` is an unbiased estimate
of the tokens a round would emit. With g in place of a, as published, it is biased unless the target is greedy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

Share = tuple[float, float]
"""g and a of one drafted token: shared mass, and the ratio that was realised."""


def expected_length(shares: Sequence[Share]) -> float:
    """Tokens a round with this chain emits, bonus included, in expectation over its uniform draws and what it would have
    drawn."""
    length, reached = 1.0, 1.0
    for shared, realised in shares:
        length += reached * shared
        reached *= realised
    return length


def length_loss(shares: Sequence[Share]) -> float:
    """In [0, 1]: nothing is lost where every draft is accepted."""
    most = len(shares) + 1
    return (most - expected_length(shares)) / most


def acceptance_loss(shares: Sequence[Share]) -> float:
    """In [0, 1]: the probability that the first draft is rejected."""
    return 1.0 - shares[0][0]


@dataclass
class _Start:
    """A chain that could have been drafted from ``place`` on: what is known of it, by arm."""

    place: int
    shares: list[list[Share]] = field(default_factory=list)


class DelayQueue:
    """Starts whose losses are not known yet: a chain of ``ahead`` tokens takes as many of the target's distributions to judge.

    Short rounds would censor what comes later in a chain; waiting until it is known makes every loss comparable.
    """

    def __init__(self, arms: int, ahead: int, loss: str = "length") -> None:
        self.arms = arms
        self.loss = loss
        self.ahead = 1 if loss == "acceptance" else ahead
        self._starts: deque[_Start] = deque()

    def clear(self) -> None:
        """The text has ended: what was not known by now never will be."""
        self._starts.clear()

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """(place, how many of its chain's distributions are known) of every start in the queue."""
        return [(start.place, len(start.shares[0])) for start in self._starts]

    def open(self, place: int) -> None:
        """From here a chain could be drafted."""
        self._starts.append(_Start(place, [[] for _ in range(self.arms)]))

    def starts(self) -> list[int]:
        """Places of the starts that a token written now says something about."""
        return [start.place for start in self._starts]

    def add(self, shares: Sequence[Sequence[Share]]) -> None:
        """One more token was written: ``shares[start][arm]``, starts in the order of :meth:`starts`."""
        for start, row in zip(self._starts, shares, strict=True):
            for known, share in zip(start.shares, row, strict=True):
                known.append(share)

    def ready(self) -> list[list[float]]:
        """Losses by arm of every start that is known by now; those leave the queue."""
        judge = acceptance_loss if self.loss == "acceptance" else length_loss
        losses: list[list[float]] = []
        while self._starts and len(self._starts[0].shares[0]) >= self.ahead:
            losses.append([judge(shares) for shares in self._starts.popleft().shares])
        return losses
