"""Token Recycling (Luo et al. 2408.08696): a static tree filled from a matrix of every token's likely successors."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, choice, parts, published_tree, switch


@dataclass(frozen=True)
class Parameters:
    """Tree, and lifetime of the matrix."""

    tree: str = choice(
        "fitted", ("published", "fitted"), "The published 80 nodes, or as many of the best nodes as run fastest here."
    )
    keep: bool = switch(True, "Keep the matrix between runs, as published.")


@Card(name="token_recycling", modality=("text", "vision_language"), exactness=TOKEN_EXACT, family="memory", parameters=Parameters)
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    from specviz.methods.token_recycling.successors import Recycler, Static, SuccessorMatrix

    size = resources.target.vocab_size
    key = ("token_recycling", resources.target.name)
    matrix = resources.remember(key, lambda: SuccessorMatrix(size)) if parameters.keep else SuccessorMatrix(size)
    return parts.single_drafter(Recycler(matrix), Static(_shape(parameters, resources)), parts.Match())


def _shape(parameters: Parameters, resources: MethodResources) -> parts.TreeShape:
    if parameters.tree == "published":
        return published_tree("token_recycling")
    tree = parts.CalibratedTree.load(resources.tree_file("token_recycling"))
    return tree.best(max(4, parts.best_size(tree.probability, resources.cost_curve())))
