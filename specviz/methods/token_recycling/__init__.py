"""Token Recycling (Luo et al. 2408.08696): a matrix of every token's most recent successors, unfolded into a fixed tree."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.registry import TOKEN_EXACT, Card, Paper, choice, parts, switch


@dataclass(frozen=True)
class Parameters:
    """Tree, and whether the matrix is kept between runs."""

    tree: str = choice(
        "fitted", ("published", "fitted"), "The published 80 nodes, or as many of the best as pay off on this machine."
    )
    keep: bool = switch(True, "Keep the matrix from one run to the next, as published.")


@Card(
    name="token_recycling",
    title="Token Recycling",
    summary="Remembers the best successors of every token from all logits, rejected branches included.",
    modality=("text", "vision_language"),
    exactness=TOKEN_EXACT,
    family="memory",
    claim="About 2×, whatever the model's size.",
    differs=(
        "Here it is {quick.token_recycling.value} with an empty matrix: the published tree of 80 nodes costs four one-token "
        "passes on two cores, so a few nodes are sent, and a run of a hundred tokens fills little of the matrix."
    ),
    paper=Paper("Turning Trash into Treasure: Accelerating Inference with Token Recycling", "Luo et al.", 2024, "2408.08696"),
    look_at="Rows of the matrix light up after each pass and unfold into the next tree; the second run of a prompt accepts more.",
    parameters=Parameters,
)
def compose(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    from specviz.methods.token_recycling.successors import Recycler, Static, SuccessorMatrix

    size = resources.target.vocab_size
    key = ("token_recycling", resources.target.name)
    matrix = resources.remember(key, lambda: SuccessorMatrix(size)) if parameters.keep else SuccessorMatrix(size)
    return parts.single_drafter(Recycler(matrix), Static(_shape(parameters, resources)), parts.Match())


def _shape(parameters: Parameters, resources: parts.MethodResources) -> parts.TreeShape:
    if parameters.tree == "published":
        return parts.published_tree("token_recycling")
    tree = parts.CalibratedTree.load(resources.tree_file("token_recycling"))
    return tree.best(max(4, parts.best_size(tree.probability, resources.cost_curve())))
