"""Falcon (Gao et al. 2412.12639): a semi-autoregressive drafter that fills two levels of the tree per pass.

The drafter's distributions inside a block of levels are marginal, so all nodes of one level below the same seed get the same
candidates. Each node that ends a block and has children is a seed of the next forward. A node's depth alone determines its
forward: forward i (from 0) fills the levels from i * k + 1 to (i + 1) * k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specviz.methods.dynamic_tree import tree_costs
from specviz.methods.registry import TOKEN_EXACT, Card, choice, number, parts
from specviz.trace.notes.drafts import Block, BlocksNote
from specviz.trace.schema import Note


@dataclass(frozen=True)
class Parameters:
    """Tree, and limits of the fitted one. The paper's values are 4 passes, at most 20 children and 166 nodes with the root."""

    tree: str = choice(
        "fitted",
        ("fitted", "published", "drawn"),
        "The most confident nodes, as many as pay off here; the published 165 nodes by rank; or 15 nodes drawn at random.",
    )
    nodes: int = number(0, 0, 200, "Size of the fitted tree; 0 chooses the fastest on this machine.", "nodes")
    forwards: int = number(2, 1, 4, "Drafter passes for the fitted tree, each two levels deep.", "passes")
    width: int = number(8, 1, 20, "Nodes expanded at each level of the fitted tree, and children of each.", "nodes")


@Card(
    name="falcon", exactness=TOKEN_EXACT.except_with("tree", "drawn"), family="heads", parameters=Parameters, weights=("falcon",)
)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    network = resources.drafter_weights("falcon")
    block = network.block
    acceptance: parts.Acceptance = parts.Match()
    builder: parts.TreeBuilder[parts.BlockDrafter]
    if parameters.tree == "fitted":
        costs = None if parameters.nodes else tree_costs(resources, network, parameters.width)
        # The builder counts one forward per level.
        pays = costs and (lambda probabilities, levels: costs(probabilities, -(-levels // block)))
        builder = parts.Dynamic(parameters.forwards * block, parameters.width, parameters.nodes, pays=pays)
    elif parameters.tree == "published":
        builder = parts.Sampled(parts.published_tree("falcon"), ranked=True, unwarped=True)
    else:
        builder, acceptance = parts.Sampled(parts.published_tree("falcon_drawn")), parts.Rejection()
    drafter = parts.BlockDrafter(network)
    return parts.single_drafter(drafter, Blocks(builder, block), acceptance, (network.config.tap,), draft_name="falcon")


class Blocks:
    """Wrapper of ``builder`` that notes the nodes of each forward of a drafter with ``block`` levels per forward."""

    def __init__(self, builder: parts.TreeBuilder[parts.BlockDrafter], block: int) -> None:
        self.builder, self.block = builder, block

    def build(self, drafter: parts.BlockDrafter, context: parts.Context) -> parts.Draft:
        draft = self.builder.build(drafter, context)
        if draft.calls == 0:
            return draft
        return replace(draft, notes=(*draft.notes, *context.notes(lambda: [self._note(draft)])))

    def _note(self, draft: parts.Draft) -> Note:
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
