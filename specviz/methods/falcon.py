"""Falcon (Gao et al. 2412.12639): a semi-autoregressive drafter that fills two levels of the tree per pass.

Forward i (from 0) fills a block of k levels, from i * k + 1 to (i + 1) * k. Within a block the distributions are marginals, so
all nodes of a level below one seed have the same candidates. Nodes with children at the end of a block are the seeds of the next
forward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specviz.methods.eagle2 import tree_costs
from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, choice, number, parts, published_tree
from specviz.trace.notes.drafts import Block, BlocksNote
from specviz.trace.schema import Note


@dataclass(frozen=True)
class Parameters:
    """Tree, and limits of the fitted tree. The paper uses 4 passes, at most 20 children, and 166 nodes with the root."""

    tree: str = choice(
        "fitted",
        ("fitted", "published", "drawn"),
        "As many of the most probable nodes as run fastest here; the published 165 nodes, by rank; or 15 sampled nodes.",
    )
    nodes: int = number(0, 0, 200, "Nodes of the fitted tree; 0 chooses the fastest number in every round.", "nodes")
    forwards: int = number(2, 1, 4, "Drafter passes for the fitted tree; each pass fills two levels.", "passes")
    width: int = number(8, 1, 20, "Beam width of the fitted tree, and children of each beam node.", "nodes")


@Card(
    name="falcon", exactness=TOKEN_EXACT.except_with("tree", "drawn"), family="heads", parameters=Parameters, weights=("falcon",)
)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    network = resources.drafter_weights("falcon")
    block = network.block
    acceptance: parts.Acceptance = parts.Match()
    builder: parts.TreeBuilder[parts.BlockDrafter]
    if parameters.tree == "fitted":
        size: Any = parameters.nodes
        if not size:
            costs = tree_costs(resources, network, parameters.width)
            # The builder counts a forward per level, but a forward fills ``block`` levels.
            size = lambda probabilities, levels: costs(probabilities, -(-levels // block))  # noqa: E731
        builder = parts.Dynamic(parameters.forwards * block, parameters.width, size)
    elif parameters.tree == "published":
        builder = parts.Sampled(published_tree("falcon"), ranked=True, unwarped=True)
    else:
        builder, acceptance = parts.Sampled(published_tree("falcon_drawn")), parts.Rejection()
    drafter = parts.BlockDrafter(network)
    return parts.single_drafter(drafter, Blocks(builder, block), acceptance, (network.config.tap,), draft_name="falcon")


class Blocks:
    """Tree builder that adds a note on the nodes of each forward to the drafts of ``builder``; a forward fills ``block``
    levels."""

    def __init__(self, builder: parts.TreeBuilder[parts.BlockDrafter], block: int) -> None:
        self.builder, self.block = builder, block

    def build(self, drafter: parts.BlockDrafter, context: parts.Context) -> parts.Draft:
        draft = self.builder.build(drafter, context)
        if draft.calls == 0:
            return draft
        return replace(draft, notes=(*draft.notes, *context.notes(lambda: [self._note(draft)])))

    def _note(self, draft: parts.Draft) -> Note:
        """Return a note with the nodes of each forward, including pruned nodes, and the first and last level."""
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
