"""Falcon's decoding tree: a fixed shape filled by rank from a drafter of several levels per forward, and the note of its
blocks.

Falcon (Gao et al., arXiv 2412.12639). The drafter's distributions inside a block are marginal, so nodes of one level below the
same seed all get the same candidates. Each node that ends a block and has children is the seed of a next forward. A node's
depth alone determines its forward: forward i fills the levels from i * k + 1 to (i + 1) * k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specviz.drafting.levels import RanksNodes
from specviz.drafting.trees.dynamic import RanksChildren, SizePolicy
from specviz.engine.interfaces import Context, Draft, Drafter, TreeBuilder
from specviz.engine.tree import DraftTree, TreeShape
from specviz.trace.notes.drafts import Block, BlocksNote
from specviz.trace.schema import Note


def by_forwards(pays: SizePolicy, block: int) -> SizePolicy:
    """Adapt ``pays`` to trees with ``block`` levels per drafter forward, for a builder that counts one forward per level."""
    return lambda probabilities, levels: pays(probabilities, -(-levels // block))


AnyDrafter = TypeVar("AnyDrafter", bound=Drafter)


class Blocks(Generic[AnyDrafter]):
    """Wraps ``builder`` and notes the nodes of each forward of a drafter with ``block`` levels per forward."""

    def __init__(self, builder: TreeBuilder[AnyDrafter], block: int) -> None:
        self.builder = builder
        self.block = block

    def build(self, drafter: AnyDrafter, context: Context) -> Draft:
        draft = self.builder.build(drafter, context)
        if draft.calls == 0:
            return draft
        return replace(draft, notes=(*draft.notes, *context.notes(lambda: [self._note(draft)])))

    def _note(self, draft: Draft) -> Note:
        """Return the note of nodes by forward, pruned ones included, with their first and last level."""
        depths = list(draft.tree.shape.depths)
        for parent, _, _ in draft.pruned:
            depths.append(depths[parent] + 1)
        nodes_by_block: dict[int, list[int]] = {}
        for node, depth in enumerate(depths[1:], start=1):
            nodes_by_block.setdefault((depth - 1) // self.block, []).append(node)
        blocks = [
            Block(nodes, [number * self.block + 1, max(depths[node] for node in nodes)])
            for number, nodes in sorted(nodes_by_block.items())
        ]
        return BlocksNote(blocks, self.block).to_note()


class RankedByTokens(RanksChildren, RanksNodes, Protocol):
    """A drafter with logits by tree tokens, over its own vocabulary."""


class Ranked:
    """Fills ``shape`` level by level: the r-th child of a node carries the drafter's r-th best token after it.

    At every temperature the tree is a function of the text before it, so its nodes are point masses.
    """

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape

    def build(self, drafter: RankedByTokens, context: Context) -> Draft:
        tokens, parents, place = [context.ids[-1]], [-1], {0: 0}
        confidence: list[float | None] = [None]
        for depth, level in enumerate(self.shape.levels):
            inner_nodes = [node for node in level if node in place and self.shape.children[node]]
            if not inner_nodes or depth >= context.max_depth - 1:
                break
            logits = drafter.logits(context, tokens, parents, [place[node] for node in inner_nodes])
            if logits is None:
                break
            child_lists = [self.shape.children[node] for node in inner_nodes]
            for node, children, offer in zip(
                inner_nodes, child_lists, _offers(logits, drafter.support, child_lists), strict=True
            ):
                for child, (token, share) in zip(children, offer, strict=False):
                    place[child] = len(tokens)
                    tokens.append(token)
                    parents.append(place[node])
                    confidence.append(math.exp(share))
        tree, calls = DraftTree.of(tokens, parents, context.device), drafter.calls()
        notes = context.notes(lambda: drafter.draft_notes(()))
        return Draft(tree, confidence=confidence, calls=calls, notes=notes)


def _offers(logits: Tensor, support: Tensor | None, child_lists: Sequence[Sequence[int]]) -> list[list[tuple[int, float]]]:
    """Return, for each row of logits [node, support], its best tokens with their log-probabilities, one per child."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    best = wide.topk(min(max(map(len, child_lists)), wide.shape[-1]), dim=-1)
    shares = best.values - wide.logsumexp(-1, keepdim=True)
    ids = best.indices if support is None else support[best.indices]
    rows = zip(ids.tolist(), shares.tolist(), child_lists, strict=True)
    return [list(zip(tokens, share, strict=True))[: len(children)] for tokens, share, children in rows]
