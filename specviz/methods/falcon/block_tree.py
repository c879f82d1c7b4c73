"""Falcon's decoding tree: drafted by forwards of several levels each, with a note of their blocks.

Falcon (Gao et al., arXiv 2412.12639). The drafter's distributions inside a block are marginal, so nodes of one level below the
same seed all get the same candidates. Each node that ends a block and has children is the seed of a next forward. A node's
depth alone determines its forward: forward i fills the levels from i * k + 1 to (i + 1) * k.
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
