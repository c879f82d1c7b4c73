"""Falcon's decoding tree: each drafter forward yields a block of several levels; a note reports the blocks.

Falcon (Gao et al., arXiv 2412.12639). The drafter's distributions inside a block are marginal, so all nodes of one level below
the same seed get the same candidates. Each node that ends a block and has children is a seed of the next forward. A node's depth
alone determines its forward: forward i (from 0) fills the levels from i * k + 1 to (i + 1) * k.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Generic, TypeVar

from specviz.drafting.trees.dynamic import SizePolicy
from specviz.engine.interfaces import Context, Draft, Drafter, TreeBuilder
from specviz.trace.notes.drafts import Block, BlocksNote
from specviz.trace.schema import Note


def by_forwards(pays: SizePolicy, block: int) -> SizePolicy:
    """Adapt ``pays`` to trees with ``block`` levels per drafter forward, for a builder that counts one forward per level."""
    return lambda probabilities, levels: pays(probabilities, -(-levels // block))


AnyDrafter = TypeVar("AnyDrafter", bound=Drafter)


class Blocks(Generic[AnyDrafter]):
    """Wrapper of ``builder`` that notes the nodes of each forward of a drafter with ``block`` levels per forward."""

    def __init__(self, builder: TreeBuilder[AnyDrafter], block: int) -> None:
        self.builder = builder
        self.block = block

    def build(self, drafter: AnyDrafter, context: Context) -> Draft:
        draft = self.builder.build(drafter, context)
        if draft.calls == 0:
            return draft
        return replace(draft, notes=(*draft.notes, *context.notes(lambda: [self._note(draft)])))

    def _note(self, draft: Draft) -> Note:
        """Return a note of the nodes of each forward, pruned ones included, with the forward's first and last level."""
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
