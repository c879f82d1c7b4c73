"""Levels of a drafter for tests that answers by tokens: the host reads those of every level."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.engine.interfaces import Context


class ByTokens:
    """A drafter whose ``logits`` are asked by the tree's tokens. ``deepest`` is how many levels it can give."""

    support: Tensor | None = None
    deepest: int = 1 << 30

    def logits(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor:
        """Raw logits [node, support] after each of ``nodes`` of the tree so far."""
        raise LookupError("a drafter has logits")

    def levels(self, context: Context) -> HostLevels | None:
        return HostLevels(self, context) if self.deepest else None


class HostLevels(Levels):
    """A round's levels, whose nodes are numbered behind all above."""

    def __init__(self, drafter: ByTokens, context: Context) -> None:
        self.deepest = drafter.deepest
        self._drafter, self._context = drafter, context
        self._tokens, self._parents = [context.ids[-1]], [-1]
        self._above = [0]

    def first(self) -> Tensor:
        return self._drafter.logits(self._context, self._tokens, self._parents, [0])

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        nodes = list(range(len(self._tokens), len(self._tokens) + len(tokens)))
        listed, rows = torch.stack((tokens, parents)).tolist()
        self._tokens += listed
        self._parents += [self._above[row] for row in rows]
        self._above = nodes
        return self._drafter.logits(self._context, self._tokens, self._parents, nodes)
