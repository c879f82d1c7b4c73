"""Chain builder for drafters that name a whole continuation, proposed as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specviz.engine.interfaces import Context, Draft
from specviz.engine.tree import DraftTree
from specviz.trace.schema import Note


class ProposesContinuation(Protocol):
    """A drafter that can say what followed before."""

    def continuation(self, context: Context) -> tuple[Sequence[int], tuple[Note, ...]]:
        """Tokens expected after ``context.ids``, possibly none, and the story of where they were found."""


class Copied:
    """The continuation as a chain, cut to the room there is (a drafter may do so itself, and tell it so)."""

    def build(self, drafter: ProposesContinuation, context: Context) -> Draft:
        tokens, notes = drafter.continuation(context)
        tokens = list(tokens)[: max(0, context.max_depth - 1)]
        tree = DraftTree.of([context.ids[-1], *tokens], range(-1, len(tokens)), context.device)
        return Draft(tree, confidence=(None,) * len(tree), calls=1 if tokens else 0, notes=notes)
