"""Polybasic speculative decoding (Wang et al. 2510.26527): a third model between target and drafter filters the draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.errors import ModelUnavailable
from specviz.methods.parameters import choice, number
from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition, Controller
    from specviz.methods.polybasic.chain_lengths import WeighedModel
    from specviz.methods.resources import TextResources

INTERMEDIATES = ("int4", "int8", "fewer_layers", "plain_copy", "small_draft")
AUTO = ("int4", "int8", "small_draft")
UNKNOWN = 8
"""Default buffer size in tokens without a calibration."""


@dataclass(frozen=True)
class Parameters:
    """The paper's intermediate model is the target in 4 bits, above EAGLE-2's drafter. We found no values of K and μ in it."""

    middle: str = choice(
        "auto",
        ("auto", *INTERMEDIATES, "draft"),
        "The intermediate model: the draft you named, else the copy that should pay most here; or one of these.",
    )
    drafter: str = choice(
        "auto", ("auto", "eagle3", "eagle", "copy"), "What drafts below; auto: EAGLE-3, or text copied under a draft."
    )
    gathered: int = number(
        0, 0, 32, "μ: tokens the intermediate model gathers before the target verifies; 0: as many as pay off.", "tokens"
    )
    depth: int = number(2, 1, 8, "K: how deep the drafter goes for each pass of the intermediate model.", "levels")
    width: int = number(3, 1, 10, "Nodes in the drafter's beam; 1 drafts a chain.", "nodes")
    nodes: int = number(0, 0, 32, "Nodes of the drafter's tree; 0: as many as pay off under the intermediate model.", "nodes")


@Card(
    name="polybasic",
    title="Polybasic",
    summary="A cheaper copy of the target filters the drafter's tokens; the target judges what gathers, once in a while.",
    exactness=IN_DISTRIBUTION,
    family="model",
    claim="3.3 to 4.4× on LLaMA2-Chat, LLaMA3, Vicuna and Qwen2 of 7 and 8B, with a 4-bit copy as the intermediate model.",
    differs=(
        "A 4-bit copy of SmolLM2, which itself comes in 4 bits, keeps the target's word {polybasic.agrees.value} times in 100, "
        "and its drafter adds {polybasic.drafted.value} tokens a pass, where the paper's adds two. With an earlier head, which "
        "added half a token, a pass of the copy cost {polybasic.pass.value} of the target's on two AVX2 cores: τ was "
        "{polybasic.tau.value}, the run {polybasic.speed.value} as fast as the target alone, yet {chain.q4.measured} times "
        "target and drafter without it; its condition foretold {chain.q4.foretold}."
    ),
    paper=Paper("Polybasic Speculative Decoding Through a Theoretical Perspective", "Wang et al.", 2025, "2510.26527"),
    look_at=(
        "The middle belt: the buffer fills to μ before the target moves once. Does the intermediate model pay, all times counted?"
    ),
    parameters=Parameters,
    weights=("eagle3",),
    needs_draft=True,
    pair='`python -m specviz run --method polybasic --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b --prompt "Why?"` with '
    "the second model in the middle and copied text below it; or, on the 4-bit copy of the paper, `python -m specviz run "
    "--method polybasic --target qwen3-1.7b --draft AngelSlim/Qwen3-1.7B_eagle3 --param middle=int4 --param drafter=eagle3 "
    '--prompt "Why?"`',
)
def compose(parameters: Parameters, resources: TextResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.acceptance.rejection import Rejection
    from specviz.drafting.memory.prompt_copy import PromptCopy
    from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
    from specviz.drafting.trees.copied import Copied
    from specviz.drafting.trees.dynamic import Dynamic, SpeedupMaximising
    from specviz.engine.interfaces import Composition
    from specviz.methods.polybasic.cascade import Cascade
    from specviz.methods.polybasic.cost_model import as_note

    below = parameters.drafter
    if below == "auto":
        below = "copy" if resources.draft_name or parameters.middle == "draft" else "eagle3"
    network = None if below == "copy" else resources.drafter_weights(below)
    taps: tuple[int, ...] = () if network is None else tuple(network.config.taps)
    forward = 0.0 if network is None else resources.forward_cost(network, parameters.width, taught=False)
    best, warning = _best(parameters, resources, below, forward)
    facts = as_note(best.forecast) if best.forecast else None
    rest = (Match(), best.block, taps, facts, resources.target.eos_ids)
    controller: Controller
    if network is None:
        controller = Cascade(best.intermediate, PromptCopy(3, 2, parameters.depth, True, True), Copied(), *rest)
    else:
        cost = best.intermediate.cost()
        pays = None if parameters.nodes else SpeedupMaximising.on(cost, forward=forward / cost.at(1))
        builder = Dynamic(parameters.depth, parameters.width if best.intermediate.branches else 1, parameters.nodes, pays=pays)
        controller = Cascade(best.intermediate, FeatureDrafter(network), builder, *rest)
    warnings = tuple(word for word in (*best.intermediate.warnings, warning) if word)
    return Composition(controller, Rejection(), taps, f"{best.intermediate.title}, {below} below it", warnings)


def _best(parameters: Parameters, resources: TextResources, below: str, forward: float) -> tuple[WeighedModel, str]:
    """Return the available intermediate model with the best forecast, or the requested one, and a warning for the user.
    ``forward`` is a drafter forward in milliseconds."""
    from specviz.methods.polybasic.chain_lengths import ChainLengths, warning, weighed

    kinds: tuple[str, ...] = (parameters.middle,)
    if parameters.middle == "auto":
        kinds = ("draft",) if resources.draft_name else AUTO
    known = ChainLengths.find(resources.tree_file("polybasic"), resources.target.name, below)
    candidates, refused = [], []
    for kind in kinds:
        try:
            intermediate = resources.intermediate(kind)
        except ModelUnavailable as problem:
            refused.append(problem)
            continue
        nodes = parameters.nodes or parameters.depth
        candidates.append(weighed(intermediate, resources.cost_curve(), forward, known, nodes, parameters.gathered, UNKNOWN))
    if not candidates:
        raise refused[0]
    best = max(candidates, key=lambda candidate: candidate.gain)
    # The command that measures such a chain's acceptance; calibrate supports only these two kinds of chains.
    recipe = f"python -m specviz calibrate polybasic --target {resources.target.name}"
    if kinds == ("draft",):
        recipe = f"{recipe} --draft {resources.draft_name}" if below == "copy" else ""
    elif below != "eagle3" or resources.draft_name:
        recipe = ""
    return best, warning(best, candidates, recipe)
