"""Jacobi window as a tree: a chain of tokens, each from a distribution of its own and independent of the one before."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from specviz.engine.interfaces import Context, Draft, Proposal
from specviz.engine.tree import DraftTree
from specviz.trace.notes.images import JacobiWindowNote


class ProposesWindow(Protocol):
    """A drafter that guesses all places of a window at once."""

    def window(self, context: Context, most: int) -> tuple[list[int], dict[int, Tensor]]:
        """Guesses for at most so many next places, and by place the distribution a guess was drawn from; none where it is
        certain."""


class Window:
    """The window as a chain."""

    def build(self, drafter: ProposesWindow, context: Context) -> Draft:
        codes, distributions = drafter.window(context, max(0, context.max_depth - 1))
        tree = DraftTree.of([context.ids[-1], *codes], range(-1, len(codes)), context.device)
        greedy = context.warp.greedy
        proposals = {} if greedy else {place: Proposal(distribution) for place, distribution in distributions.items()}
        shares = [
            None,
            *(float(distributions[place][code]) if place in distributions else None for place, code in enumerate(codes)),
        ]
        notes = context.notes(lambda: [JacobiWindowNote(codes, len(distributions)).to_note()])
        return Draft(tree, proposals, shares, 0, notes=notes)
