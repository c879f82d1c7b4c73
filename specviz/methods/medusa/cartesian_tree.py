"""Pruned Cartesian product tree of independent heads: fixed rank paths over each depth's candidates.

Medusa (Cai et al., arXiv 2401.10774). Path (0, 2) is the best token of depth 1 followed by the third best of depth 2,
whatever the first one was: all nodes of a depth share one list of candidate children.
"""

from __future__ import annotations

from collections.abc import Sequence

from specviz.engine.interfaces import Context, Draft
from specviz.engine.tree import DraftTree, TreeShape
from specviz.errors import BadInput
from specviz.methods.medusa.drafter import ParallelDrafter

RankPath = tuple[int, ...]


def paths_of(shape: TreeShape) -> tuple[RankPath, ...]:
    """Return the rank path of every node but the root, a node's rank being its index among its siblings."""
    paths: list[RankPath] = [()]
    for node, parent in enumerate(shape.parents[1:], start=1):
        paths.append((*paths[parent], shape.children[parent].index(node)))
    return tuple(paths[1:])


class Product:
    """Tree builder that fills ``paths`` level by level. Paths beyond the last head, its candidates or the remaining room are
    dropped."""

    def __init__(self, paths: Sequence[RankPath]) -> None:
        """Raises BadInput if a path's parent is missing."""
        self._paths = sorted({tuple(path) for path in paths if path}, key=lambda path: (len(path), path))
        known = {(), *self._paths}
        for path in self._paths:
            if path[:-1] not in known:
                raise BadInput(f"The tree has the path {list(path)} but not its parent.")
        self._width = 1 + max((path[-1] for path in self._paths), default=0)

    def build(self, drafter: ParallelDrafter, context: Context) -> Draft:
        offers = drafter.depths(self._width)
        deepest = min(len(offers), max(0, context.max_depth - 1))
        tokens, parents = [context.ids[-1]], [-1]
        confidence: list[float | None] = [None]
        place: dict[RankPath, int] = {(): 0}
        for path in self._paths:
            if len(path) > deepest:
                break
            offer = offers[len(path) - 1]
            if path[-1] >= len(offer.tokens) or path[:-1] not in place:
                continue
            place[path] = len(tokens)
            tokens.append(offer.tokens[path[-1]])
            parents.append(place[path[:-1]])
            confidence.append(offer.probability[path[-1]])
        tree = DraftTree.of(tokens, parents, context.device)
        notes = context.notes(lambda: drafter.draft_notes(offers))
        return Draft(tree, confidence=confidence, calls=drafter.calls(), notes=notes)
