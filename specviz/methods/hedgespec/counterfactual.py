"""Full-information losses: every drafter's counterfactual acceptance on the verified text.

HedgeSpec (arXiv 2510.20064) with a correction. For a chain drafted from ``start``, let g be the overlap of the drafter's
distribution with the target's: one minus their total variation distance. Let a be the ratio min(1, q/p) at the emitted token.
Along a text from the target's distribution, ``1 + sum over k of a_1 ... a_(k-1) g_k`` is an unbiased estimate of the tokens that
a round would emit. With g in place of a, as published, it is biased unless the target is greedy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

Share = tuple[float, float]
"""g and a of one drafted token: the shared mass and the realised ratio."""


def expected_length(shares: Sequence[Share]) -> float:
    """Return the expected number of tokens of a round with this chain, bonus included, over its random draws and drafts."""
    length, reached = 1.0, 1.0
    for shared, realised in shares:
        length += reached * shared
        reached *= realised
    return length


def length_loss(shares: Sequence[Share]) -> float:
    """Return the loss in [0, 1]: 0 if every draft is accepted."""
    most = len(shares) + 1
    return (most - expected_length(shares)) / most


def acceptance_loss(shares: Sequence[Share]) -> float:
    """Return the probability that the first draft is rejected."""
    return 1.0 - shares[0][0]


@dataclass
class _Start:
    """A hypothetical chain from position ``place`` on, with its known shares by arm."""

    place: int
    shares: list[list[Share]] = field(default_factory=list)


class DelayQueue:
    """Queue of starts whose losses are not known yet: evaluating a chain of ``ahead`` tokens requires as many target
    distributions.

    Short rounds would censor a chain's later tokens; waiting for them makes all losses comparable.
    """

    def __init__(self, arms: int, ahead: int, loss: str = "length") -> None:
        self.arms = arms
        self.loss = loss
        self.ahead = 1 if loss == "acceptance" else ahead
        self._starts: deque[_Start] = deque()

    def clear(self) -> None:
        """Drop all pending starts, for a new text."""
        self._starts.clear()

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """Position of every start in the queue, and the number of known distributions along its chain."""
        return [(start.place, len(start.shares[0])) for start in self._starts]

    def open(self, place: int) -> None:
        """Add a start at position ``place``."""
        self._starts.append(_Start(place, [[] for _ in range(self.arms)]))

    def starts(self) -> list[int]:
        """Return the positions of all starts, in order; the next emitted token extends the chain of each."""
        return [start.place for start in self._starts]

    def add(self, shares: Sequence[Sequence[Share]]) -> None:
        """Add one emitted token's ``shares[start][arm]``, with starts in the order of :meth:`starts`."""
        for start, row in zip(self._starts, shares, strict=True):
            for known, share in zip(start.shares, row, strict=True):
                known.append(share)

    def ready(self) -> list[list[float]]:
        """Remove every complete start from the queue; return the losses by arm of each."""
        judge = acceptance_loss if self.loss == "acceptance" else length_loss
        losses: list[list[float]] = []
        while self._starts and len(self._starts[0].shares[0]) >= self.ahead:
            losses.append([judge(shares) for shares in self._starts.popleft().shares])
        return losses
