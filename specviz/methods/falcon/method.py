"""Falcon (Gao et al. 2412.12639): a semi-autoregressive drafter that fills two levels of the tree per pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.dynamic_tree import tree_costs
from specviz.methods.parameters import choice, number
from specviz.methods.registry import TOKEN_EXACT, Card, Paper
from specviz.methods.resources import published_tree

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import MethodResources


@dataclass(frozen=True)
class Parameters:
    """Tree, and limits of the fitted one. The paper's values are 4 passes, at most 20 children and 166 nodes with the root."""

    tree: str = choice(
        "fitted",
        ("fitted", "published", "drawn"),
        "The most confident nodes, as many as pay off here; the published 165 nodes by rank; or 15 nodes drawn at random.",
    )
    nodes: int = number(0, 0, 200, "Size of the fitted tree; 0 takes the fastest on this machine.", "nodes")
    forwards: int = number(2, 1, 4, "Drafter passes for the fitted tree, each two levels deep.", "passes")
    width: int = number(8, 1, 20, "Nodes carried on at each level of the fitted tree, and children of each.", "nodes")


@Card(
    name="falcon",
    title="Falcon",
    summary="One drafter pass gives two levels of the tree; the second level is guessed without knowing the first.",
    exactness=TOKEN_EXACT.except_with("tree", "drawn"),
    family="heads",
    claim="2.9 to 3.5× on Vicuna and LLaMA2-Chat.",
    differs=(
        "Here τ is {acceptance.falcon.all} with 25 nodes over sixty held-out prompts of six kinds, two drafter passes a step "
        "where EAGLE's tree takes five and has {acceptance.eagle.all}; by default {text.falcon.greedy} with {text.falcon.tau} "
        "(three prompts). The second token of a pass has to be predicted without the first. Glancing costs more than it brings: "
        "trained without it for as long a pass writes {falcon.plain.forward} tokens, with it {falcon.glancing.forward}."
    ),
    paper=Paper(
        "Falcon: Faster and Parallel Inference of Large Language Models through Enhanced Semi-Autoregressive Drafting and "
        "Custom-Designed Decoding Tree",
        "Gao et al.",
        2024,
        "2412.12639",
        "AAAI 2025",
    ),
    look_at="Levels light up in pairs, a pair a pass: a pair's second level hangs from one list below each seed.",
    parameters=Parameters,
    weights=("falcon",),
    pair="No reader for its layout",
)
def compose(parameters: Parameters, resources: MethodResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.acceptance.rejection import Rejection
    from specviz.drafting.runtimes.block_drafter import BlockDrafter
    from specviz.drafting.trees.dynamic import Dynamic
    from specviz.drafting.trees.sampled import Sampled
    from specviz.engine.controller import single_drafter
    from specviz.engine.interfaces import TreeBuilder
    from specviz.methods.falcon.block_tree import Blocks, by_forwards

    network = resources.drafter_weights("falcon")
    block, depth = network.block, parameters.forwards * network.block
    pays = None if parameters.nodes else by_forwards(tree_costs(resources, network, parameters.width), block)
    builders: dict[str, TreeBuilder[BlockDrafter]] = {
        "fitted": Dynamic(depth, parameters.width, parameters.nodes, pays=pays),
        "published": Sampled(published_tree("falcon"), ranked=True, unwarped=True),
        "drawn": Sampled(published_tree("falcon_drawn")),
    }
    acceptance = Rejection() if parameters.tree == "drawn" else Match()
    return single_drafter(
        BlockDrafter(network), Blocks(builders[parameters.tree], block), acceptance, (network.config.tap,), draft_name="falcon"
    )
