"""Traversal Verification (Weng et al. 2505.12398): sampled trees verified from the leaves up; on a chain, block verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specviz.methods.parameters import choice, number
from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.engine.tree import TreeShape
    from specviz.methods.resources import TextResources

DEEPEST_BINARY = 6


@dataclass(frozen=True)
class Parameters:
    """The paper's trees: a chain of 5, a binary tree, and EAGLE's 25 nodes. Only sampled trees can gain."""

    shape: str = choice(
        "sparse",
        ("chain", "binary", "sparse"),
        "A chain (then this is block verification), two children a node, or EAGLE's published 25 nodes.",
    )
    depth: int = number(5, 1, 8, "Levels of the chain or the binary tree; the sparse tree has its own five.", "levels")
    drafter: str = choice("eagle3", ("eagle3", "draft_model"), "EAGLE-3's heads, or the draft model, which drafts chains.")


@Card(
    name="traversal",
    title="Traversal Verification",
    summary="A sampled tree is judged from its leaves upwards, so that a likely continuation can rescue an unlikely token.",
    exactness=IN_DISTRIBUTION,
    family="judge",
    claim="2 to 6 % more accepted tokens than judging from the root, on the same trees.",
    differs=(
        "On three prompts τ is {text.traversal.tau} at temperature 0 and {text.traversal.greedy}, at 1 "
        "{text.traversal.tau_warm} and {text.traversal.warm}: five drafter passes and a wide tree. On the very same trees, "
        "drawn by an earlier head of EAGLE-3, it accepts more than the rule from the root: {traversal.chains.depth_2} at two "
        "levels, {traversal.chains.depth_6} along chains of six, {traversal.binary.depth_4} on bushy trees."
    ),
    paper=Paper("Traversal Verification for Speculative Tree Decoding", "Weng et al.", 2025, "2505.12398", "NeurIPS"),
    look_at="At T = 1: the weights fill from the leaves, and rescued nodes stand below ones the usual rule would have refused.",
    parameters=Parameters,
    weights=("eagle3",),
    pair="`python -m specviz run --method traversal --target qwen3-1.7b --draft AngelSlim/Qwen3-1.7B_eagle3 --temperature 1 "
    '--prompt "Why?"`',
)
def compose(parameters: Parameters, resources: TextResources) -> Composition:
    from specviz.drafting.trees.sampled import Sampled
    from specviz.engine.controller import single_drafter
    from specviz.errors import BadInput
    from specviz.methods.traversal.verification import Traversal

    if parameters.drafter == "draft_model" and parameters.shape != "chain":
        raise BadInput(
            f"A draft model drafts chains, and the shape is {parameters.shape}: choose shape chain, or drafter eagle3."
        )
    drafter, taps, name, warnings = _drafter(parameters, resources)
    return single_drafter(drafter, Sampled(_shape(parameters)), Traversal(), taps, draft_name=name, warnings=warnings)


def _drafter(parameters: Parameters, resources: TextResources) -> tuple[Any, tuple[int, ...], str, tuple[str, ...]]:
    """Return the drafter, the hidden-state layers it reads, its name, and warnings for the user."""
    from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
    from specviz.drafting.runtimes.language_model import LanguageModelDrafter

    if parameters.drafter == "eagle3":
        network = resources.drafter_weights("eagle3")
        return FeatureDrafter(network), network.config.taps, "eagle3", ()
    draft = resources.draft_model()
    return LanguageModelDrafter(draft.open, draft.context_length), (), draft.name, draft.warnings


def _shape(parameters: Parameters) -> TreeShape:
    from specviz.engine.tree import chain, shape_from_counts
    from specviz.errors import BadInput
    from specviz.methods.resources import published_tree

    if parameters.shape == "chain":
        return chain(parameters.depth)
    if parameters.shape == "sparse":
        return published_tree("eagle")
    if parameters.depth > DEEPEST_BINARY:
        nodes = 2 ** (parameters.depth + 1) - 2
        raise BadInput(
            f"A binary tree of depth {parameters.depth} has {nodes} nodes, more than a pass should hold: choose at most "
            f"{DEEPEST_BINARY}."
        )
    return shape_from_counts([[2] * 2**level for level in range(parameters.depth)])
