"""Medusa's drafter and tree: each head ranks the tokens of one depth, independently of the tokens above.

Alignment: the heads read the target's hidden state at the token before the root. From this state the target's head predicted the
root, so head 1 predicts the root's child, and head k the token at depth k.

The tree is a pruned Cartesian product (Cai et al., arXiv 2401.10774). Rank path (0, 2) is the best token of depth 1, then the
third-best token of depth 2. All nodes of a depth share one list of candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafting.networks.parallel_net import ParallelNet
from specviz.drafting.runtimes.null import NullDrafter
from specviz.drafting.trees.best_first import ranked
from specviz.engine.interfaces import Context, Draft, Round, TargetPass
from specviz.engine.tree import DraftTree, TreeShape, shape_from_paths
from specviz.trace.notes.drafts import HeadOffer, HeadsNote
from specviz.trace.schema import Note

SHOWN = 10
RankPath = tuple[int, ...]


class ParallelDrafter(NullDrafter):
    """Drafter with parallel heads on the target's hidden state at the token before the root."""

    def __init__(self, network: ParallelNet) -> None:
        self._network = network
        self._tap = network.config.tap
        self.support: Tensor | None = network.draft_ids
        self._feature: Tensor | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._feature = None if prefill is None else prefill.hidden[self._tap][-1]
        self._calls = 0

    def observe(self, finished: Round) -> None:
        path = finished.verdict.path
        self._feature = finished.target.hidden[self._tap][path[-1] if path else 0]

    def close(self) -> None:
        self._feature = None

    @torch.inference_mode()
    def marginals(self, context: Context) -> Tensor | None:
        """Return the logits [depth, support] of all heads, from depth 1; None before the first target pass."""
        if self._feature is None:
            return None
        self._calls += 1
        like = self._network.outputs
        return self._network.logits(self._feature.to(like.device, like.dtype)[None])[:, 0]


def paths_of(shape: TreeShape) -> tuple[RankPath, ...]:
    """Return the rank path of every node but the root. A node's rank is its index among its siblings."""
    paths: list[RankPath] = [()]
    for node, parent in enumerate(shape.parents[1:], start=1):
        paths.append((*paths[parent], shape.children[parent].index(node)))
    return tuple(paths[1:])


class Product:
    """Tree builder that fills the rank ``paths`` level by level.

    Paths are dropped if they need more heads, candidates or positions than a round allows.
    """

    def __init__(self, paths: Sequence[RankPath]) -> None:
        """Raise BadInput if a path's parent is missing."""
        self._shape = shape_from_paths(paths)
        self._paths = sorted(set(paths), key=lambda path: (len(path), path))  # the node order of the shape
        self._width = 1 + max(path[-1] for path in paths)

    def build(self, drafter: ParallelDrafter, context: Context) -> Draft:
        logits = drafter.marginals(context)
        offers = [] if logits is None else ranked(logits, drafter.support, self._width)
        deepest = min(len(offers), max(0, context.max_depth - 1))
        tokens, parents = [context.ids[-1]], [-1]
        confidence: list[float | None] = [None]
        place = {0: 0}
        for node, (path, parent) in enumerate(zip(self._paths, self._shape.parents[1:], strict=True), start=1):
            if len(path) > deepest:
                break
            offer = offers[len(path) - 1]
            if path[-1] >= len(offer.tokens) or parent not in place:
                continue
            place[node] = len(tokens)
            tokens.append(offer.tokens[path[-1]])
            parents.append(place[parent])
            confidence.append(math.exp(offer.log_q[path[-1]]))
        tree = DraftTree.of(tokens, parents, context.device)

        def heads() -> list[Note]:
            shown = [(depth.tokens[:SHOWN], [math.exp(log_q) for log_q in depth.log_q[:SHOWN]]) for depth in offers]
            return [HeadsNote([HeadOffer(number, *one) for number, one in enumerate(shown, start=1)]).to_note()] if shown else []

        notes = context.notes(heads)
        return Draft(tree, confidence=confidence, calls=drafter.calls(), notes=notes)
