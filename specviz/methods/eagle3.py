"""EAGLE-3 (Li et al. 2503.01840): three of the target's hidden states fused, and a drafter trained on its own outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.dynamic_tree import NODES, RULE, WIDTH
from specviz.methods.parameters import number
from specviz.methods.registry import Paper, method

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import MethodResources


@dataclass(frozen=True)
class Parameters:
    """The paper's values for an 8B target are depth 8, width 10 and 59 nodes (60 with the root)."""

    depth: int = number(
        0, 0, 12,
        "Depth of the tree; each level takes one drafter pass. 0 chooses the depth that pays on this machine, at least 2, if "
        "the drafter was calibrated for this target and width; otherwise 5. Drawn tokens go as deep as pays in each round, 5 "
        "levels at most. The paper's value is 8.",
        "levels",
    )  # fmt: skip
    width: int = WIDTH
    nodes: int = NODES
    rule: str = RULE


@method(
    name="eagle3",
    title="EAGLE-3",
    summary="Low, middle and high hidden states are fused, and the drafter was trained on what it feeds itself.",
    published=("vision_language",),
    exactness="exact",
    token_exact_with=("rule", "match"),
    family="features",
    claim="5.5× and τ 6.6 on Vicuna 13B, 4.4× and τ 6.2 on Llama 3.1 8B, at temperature 0.",
    differs=(
        "With 25 nodes τ is {acceptance.eagle3.all} at temperature 0 over sixty held-out prompts of six kinds, "
        "{acceptance.eagle3.maths} on maths and {acceptance.eagle3.questions} on questions; as deep as pays "
        "{speed.eagle3.greedy} with {speed.eagle3.tau}, {speed.eagle3.warm} at 1. The head learned from "
        "{weights.eagle3.thousand} thousand of the target's dialogues, the paper's from half a million; acceptance stays level "
        "with depth."
    ),
    paper=Paper(
        "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
        "Li et al.",
        2025,
        "2503.01840",
        "NeurIPS",
    ),
    look_at="Acceptance by depth stays flat where EAGLE's falls after the first: the drafter met its own mistakes in training.",
    parameters=Parameters,
    weights=("eagle3",),
)
def compose(parameters: Parameters, parts: MethodResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.acceptance.rejection import Rejection
    from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
    from specviz.drafting.runtimes.visual_context import AllRows
    from specviz.engine.controller import SingleDrafter
    from specviz.engine.interfaces import Composition
    from specviz.methods.dynamic_tree import dynamic_tree

    network = parts.drafter_weights("eagle3")
    builder = dynamic_tree(
        parameters, parts, network, "eagle3", "eagle3", usual=5, drawn=parameters.rule == "without_replacement"
    )
    acceptance = Match() if parameters.rule == "match" else Rejection()
    if parts.picture is None:
        drafter = FeatureDrafter(network)
        return Composition(SingleDrafter(drafter, builder), acceptance, network.config.taps, draft_name="eagle3")
    rows = AllRows(network, parts.picture)
    return Composition(SingleDrafter(rows, builder), acceptance, rows.reads, draft_name="eagle3 with visual rows")
