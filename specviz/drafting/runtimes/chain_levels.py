"""Levels of a drafter that grows chains: one row each, its token on the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")


class ChainLevels:
    """``after`` gives raw logits [support] after the chain so far and a token [1] below it, None those after the root.
    ``deepest`` is how many levels there is room for."""

    def __init__(self, after: Callable[[Tensor | None], Tensor], deepest: int) -> None:
        self._after = after
        self.deepest = deepest

    def step(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """Do ``work``."""
        return work()

    def first(self) -> Tensor:
        """Raw logits [1, support] after the root."""
        return self._after(None)[None]

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Raw logits [1, support] after the only token of the next level."""
        return self._after(tokens)[None]

    def ask(self, tokens: Tensor | None = None, parents: Tensor | None = None) -> Tensor:
        """The next level: :meth:`first` without arguments, else :meth:`below`."""
        return self._after(tokens)[None]

    def given(self, name: Hashable, values: Tensor) -> Tensor:
        """``values`` themselves, as nothing is recorded."""
        return values
