"""Levels of a drafter: what a tree builder asks so that a tree may grow on the device with one copy to the host.

Axis names: ``row`` (of a level), ``support`` (tokens with drafter's mass).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from specviz.engine.interfaces import Context

Result = TypeVar("Result")


class Levels:
    """One round of a drafter, from the root down. ``deepest`` is how many levels there is room for: any, by default."""

    deepest: int = 1 << 30

    def step(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """Do ``work``, which asks for exactly one level, the next one, and gives tensors.

        On CUDA it may be captured once and replayed in later rounds. It must ask the host for nothing and read only tensors that
        stay in place, such as an earlier step's result. ``key`` distinguishes it from other work at this level.
        """
        return work()

    def first(self) -> Tensor:
        """Raw logits [1, support] after the root."""
        raise LookupError("a drafter's levels have a first one")

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Raw logits [row, support] after ``tokens`` [row], whose parents are these rows of the level above, both int64."""
        raise LookupError("a drafter's levels go on")

    def ask(self, tokens: Tensor | None = None, parents: Tensor | None = None) -> Tensor:
        """Raw logits of the next level, in a step of its own: :meth:`first` without arguments, else :meth:`below` these rows. For
        rows chosen outside of what may be recorded, such as by noise that is another in every round."""
        return self.first() if tokens is None or parents is None else self.below(tokens, parents)

    def given(self, name: Hashable, values: Tensor) -> Tensor:
        """``values``, which change from round to round, where a step finds them: always at the same place for one ``name``."""
        return values


class ChainLevels(Levels):
    """Levels of one row each: ``after`` gives raw logits [support] after the chain so far and a token [1] below it, None those
    after the root."""

    def __init__(self, after: Callable[[Tensor | None], Tensor], deepest: int) -> None:
        self._after, self.deepest = after, deepest

    def first(self) -> Tensor:
        return self._after(None)[None]

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        return self._after(tokens)[None]


class RanksNodes(Protocol):
    """A drafter that is asked by tokens which the host knows."""

    def logits(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor | None:
        """Raw logits [node, support] after each of ``nodes`` of the tree so far, in one forward; None when it cannot.

        Within a round ``tokens`` and ``parents`` only grow, and a node is asked after its parent.
        """


class HostLevels(Levels):
    """Levels of a drafter that wants to know its tokens: the host reads those of every level."""

    def __init__(self, drafter: RanksNodes, context: Context, root: Tensor) -> None:
        self.deepest = context.max_depth
        self._drafter, self._context, self._root = drafter, context, root
        self._tokens, self._parents = [context.ids[-1]], [-1]
        self._above = [0]

    def first(self) -> Tensor:
        return self._root

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """As every drafter's, its level's nodes numbered behind all above. Raises DraftExhausted where it cannot go on."""
        nodes = list(range(len(self._tokens), len(self._tokens) + len(tokens)))
        listed, rows = torch.stack((tokens, parents)).tolist()
        self._tokens += listed
        self._parents += [self._above[row] for row in rows]
        self._above = nodes
        logits = self._drafter.logits(self._context, self._tokens, self._parents, nodes)
        if logits is None:
            raise DraftExhausted
        return logits


class DraftExhausted(Exception):
    """A drafter that cannot go on from this level."""


def levels_of(drafter: Any, context: Context) -> Levels | None:
    """The drafter's levels in this round, its own where it has them; None where it has nothing to offer."""
    own = getattr(drafter, "levels", None)
    if own is not None:
        levels: Levels | None = own(context)
        return levels
    root = drafter.logits(context, [context.ids[-1]], [-1], [0])
    return None if root is None else HostLevels(drafter, context, root)


def tell_places(drafter: Any, rows: Mapping[int, tuple[int, int]]) -> None:
    """Tell a drafter that wants to know it which nodes of the tree stand for rows of its levels: (level, row) by node."""
    placed = getattr(drafter, "placed", None)
    if placed is not None:
        placed(rows)
