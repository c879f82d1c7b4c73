"""Static tree filled with ranked successors: the r-th child of a node carries its r-th best successor."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.engine.interfaces import Context, Draft
from specviz.engine.tree import DraftTree, TreeShape
from specviz.methods.token_recycling.successors import Recycler
from specviz.trace.notes.drafts import SuccessorRow
from specviz.trace.schema import Note

SHOWN = 12


class Static:
    """Tree builder that fills ``shape`` level by level. A branch ends where no successor is known, since an arbitrary token would
    waste a row."""

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape

    def build(self, drafter: Recycler, context: Context) -> Draft:
        tokens, parents, place = [context.ids[-1]], [-1], {0: 0}
        unfolded: list[tuple[int, Sequence[int], int]] = []
        for depth, level in enumerate(self.shape.levels):
            inner_nodes = [node for node in level if node in place and self.shape.children[node]]
            if not inner_nodes or depth >= context.max_depth - 1:
                break
            for node, ranked in zip(inner_nodes, drafter.successors([tokens[place[node]] for node in inner_nodes]), strict=True):
                used = list(zip(self.shape.children[node], ranked, strict=False))
                for child, token in used:
                    place[child] = len(tokens)
                    tokens.append(int(token))
                    parents.append(place[node])
                if used:
                    unfolded.append((place[node], ranked, len(used)))
        tree = DraftTree.of(tokens, parents, context.device)

        def note() -> list[Note]:
            rows = [SuccessorRow(node, tokens[node], list(ranked), used) for node, ranked, used in unfolded[:SHOWN]]
            return [drafter.note(rows)]

        return Draft(tree, confidence=(None,) * len(tree), calls=1, notes=context.notes(note))
