"""Tree builder of whole image rows: one chain of deterministic codes in reading order, without a bonus token."""

from __future__ import annotations

from typing import Protocol

from specviz.engine.interfaces import Context, Draft
from specviz.engine.tree import DraftTree
from specviz.trace.notes.images import CoarseCodesNote


class RowDrafting(Protocol):
    """A drafter that gives rows."""

    def block(self, context: Context) -> tuple[list[int], list[int]]:
        """Codes of the next rows, and the coarser codes they were made of, which also count as its forwards."""


class BlockRows:
    """Takes what the drafter gives. The block ends where the picture does."""

    def build(self, drafter: RowDrafting, context: Context) -> Draft:
        fine, coarse = drafter.block(context)
        fine = fine[: max(0, context.max_depth)]
        tree = DraftTree.of([context.ids[-1], *fine], range(-1, len(fine)), context.device)
        notes = context.notes(lambda: [CoarseCodesNote(coarse, fine).to_note()])
        return Draft(tree, confidence=(None,) * len(tree), calls=len(coarse), notes=notes)
