"""Traversal Verification (Weng et al. 2505.12398): leaf-to-root verification of sampled trees; block verification on a chain."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.errors import BadInput
from specviz.methods.registry import IN_DISTRIBUTION, Card, TextResources, choice, number, parts, published_tree

DEEPEST_BINARY = 6


@dataclass(frozen=True)
class Parameters:
    """Trees of the paper: a chain of 5, a binary tree, and EAGLE's 25 nodes."""

    shape: str = choice(
        "sparse",
        ("chain", "binary", "sparse"),
        "A chain (block verification), a binary tree, or EAGLE's published 25 nodes.",
    )
    depth: int = number(5, 1, 8, "Depth of the chain or the binary tree; EAGLE's tree always has five levels.", "levels")
    drafter: str = choice("eagle3", ("eagle3", "draft_model"), "EAGLE-3's heads, or a draft model, for chains only.")


@Card(name="traversal", exactness=IN_DISTRIBUTION, family="judge", parameters=Parameters, weights=("eagle3",))
def compose(parameters: Parameters, resources: TextResources) -> parts.Composition:
    from specviz.methods.traversal.verification import Traversal

    builder = parts.Sampled(_shape(parameters))
    if parameters.drafter == "draft_model":
        if parameters.shape != "chain":
            raise BadInput(
                f"A draft model drafts chains, but the shape is {parameters.shape}: set shape=chain or drafter=eagle3."
            )
        return parts.chain_drafter(resources.draft_model(), builder, Traversal())
    network = resources.drafter_weights("eagle3")
    return parts.single_drafter(parts.FeatureDrafter(network), builder, Traversal(), network.config.taps, "eagle3")


def _shape(parameters: Parameters) -> parts.TreeShape:
    if parameters.shape == "chain":
        return parts.chain(parameters.depth)
    if parameters.shape == "sparse":
        return published_tree("eagle")
    if parameters.depth > DEEPEST_BINARY:
        nodes = 2 ** (parameters.depth + 1) - 2
        raise BadInput(
            f"A binary tree of depth {parameters.depth} has {nodes} nodes, too many for one pass: choose a depth of at most "
            f"{DEEPEST_BINARY}."
        )
    return parts.shape_from_counts([[2] * 2**level for level in range(parameters.depth)])
