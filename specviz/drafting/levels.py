"""Levels of a drafter: the interface for growing a tree on the device, with one copy to the host.

Axis names: ``row`` (of a level), ``support`` (the drafter's vocabulary).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from specviz.engine.interfaces import Context, Pick
from specviz.trace.schema import Note

Result = TypeVar("Result")


class Levels:
    """Logits of one round, level by level from the root. ``deepest``: maximum number of levels, unlimited by default."""

    deepest: int = 1 << 30

    def step(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """Run ``work``, which computes exactly the next level. Returns its result.

        On CUDA the work may be captured once and replayed in later rounds. It may therefore read only tensors with fixed
        addresses, such as an earlier step's result. ``key``: distinguishes this work from other work at this level.
        """
        return work()

    def first(self) -> Tensor:
        """Return raw logits [1, support] after the root."""
        raise LookupError(f"{type(self).__name__} does not implement first()")

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return raw logits [row, support] after ``tokens`` [row]; ``parents`` [row] are rows of the level above (int64)."""
        raise LookupError(f"{type(self).__name__} does not implement below()")

    def ask(self, tokens: Tensor | None = None, parents: Tensor | None = None) -> Tensor:
        """Return the next level's raw logits, computed in a separate step: :meth:`first` without arguments, else :meth:`below`.

        For rows chosen outside captured work, for example with the round's noise.
        """
        return self.first() if tokens is None or parents is None else self.below(tokens, parents)

    def given(self, name: Hashable, values: Tensor) -> Tensor:
        """Return ``values``, which change from round to round, at an address that is fixed for each ``name``.

        Captured steps can read such tensors.
        """
        return values


class ChainLevels(Levels):
    """Levels of one row each.

    ``after``: function that returns raw logits [support] after a token [1] that extends the chain, or after the root for None.
    ``asked``: number of levels so far.
    """

    def __init__(self, after: Callable[[Tensor | None], Tensor], deepest: int) -> None:
        self._after, self.deepest, self.asked = after, deepest, 0

    def first(self) -> Tensor:
        self.asked += 1
        return self._after(None)[None]

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        self.asked += 1
        return self._after(tokens)[None]


class LevelDrafter(Protocol):
    """Drafter that returns logits level by level over one vocabulary."""

    @property
    def support(self) -> Tensor | None:
        """Token ids of the drafter's vocabulary, int64 [support]; None for the target's vocabulary."""

    def levels(self, context: Context) -> Levels | None:
        """Return this round's levels, or None if the drafter cannot draft."""

    def calls(self) -> int:
        """Return the number of drafter forwards since the last call."""

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        """Return notes on the picked children."""
