"""EAGLE-2 (Li et al. 2406.16858): the drafter of EAGLE, and a tree that follows its confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specviz.methods.dynamic_tree import NODES, RULE, WIDTH
from specviz.methods.parameters import number
from specviz.methods.registry import Paper, method

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import MethodResources


@dataclass(frozen=True)
class Parameters:
    """The paper's values for a 7B target are depth 6, width 10 and 59 nodes (60 with the root)."""

    depth: int = number(
        0, 0, 12,
        "Depth of the tree; each level takes one drafter pass. 0 chooses the depth that pays on this machine, at least 2, if "
        "the drafter was calibrated for this target and width; otherwise 4. Drawn tokens go as deep as pays in each round, 4 "
        "levels at most. The paper's value is 6.",
        "levels",
    )  # fmt: skip
    width: int = WIDTH
    nodes: int = NODES
    rule: str = RULE


@method(
    name="eagle2",
    title="EAGLE-2",
    summary="The drafter's confidence stands in for acceptance: expand the best beam, then keep the best nodes of all.",
    modality=("text", "vision_language", "image"),
    exactness="exact",
    token_exact_with=("rule", "match"),
    family="features",
    claim="3.05 to 4.26×, 20 to 40 % over EAGLE.",
    differs=(
        "τ is {acceptance.eagle2.all} with 25 nodes at temperature 0, the fixed tree's {acceptance.eagle.all} (sixty held-out "
        "prompts of six kinds). At 1 the tokens are drawn from the drafter's distribution, which the paper's are not: "
        "{rules.eagle2.drawn} instead of {rules.eagle2.likeliest}. The head learned from {weights.eagle.thousand} thousand "
        "dialogues. By default the depth is what pays here, two levels at least: {speed.eagle2.greedy} with τ "
        "{speed.eagle2.tau} at 0, {speed.eagle2.warm} with {speed.eagle2.tau_warm} at 1."
    ),
    paper=Paper(
        "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
        "Li et al.",
        2024,
        "2406.16858",
        "EMNLP",
    ),
    look_at="Two phases at temperature 0: the beam expands level by level, then the losers fade. Sure rounds give deep trees, "
    "doubtful wide ones; drawn tokens are never dropped.",
    parameters=Parameters,
    weights=("eagle",),
    pair="`python -m specviz run --method eagle2 --target llama-3.1-8b-instruct --draft EAGLE-LLaMA3.1-Instruct-8B-safetensors "
    '--prompt "Why?"` with yuhuili/EAGLE-LLaMA3.1-Instruct-8B, a torch zip: `pairs` tells how to convert it; or with a '
    "model's own MTP layer, as below. On pictures too, with heads of EAGLE-1/2 in this layout; `eagle3` with those below",
)
def compose(parameters: Parameters, parts: MethodResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.acceptance.rejection import Rejection
    from specviz.drafting.runtimes.compressed_picture import with_picture
    from specviz.drafting.runtimes.guided_drafter import feature_drafter
    from specviz.engine.controller import SingleDrafter
    from specviz.engine.interfaces import Composition
    from specviz.methods.dynamic_tree import dynamic_tree

    network = parts.drafter_weights("eagle")
    builder = dynamic_tree(parameters, parts, network, "eagle", "eagle2", usual=4, drawn=parameters.rule == "without_replacement")
    acceptance = Match() if parameters.rule == "match" else Rejection()
    taps = network.config.taps
    if parts.picture is None:
        drafter = feature_drafter(network, parts.guidance)
        return Composition(SingleDrafter(drafter, builder), acceptance, taps, draft_name="eagle")
    rows: Any = with_picture(network, parts.picture)
    return Composition(SingleDrafter(rows, builder), acceptance, rows.reads, draft_name="eagle with visual rows")
