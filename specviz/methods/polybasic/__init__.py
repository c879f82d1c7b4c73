"""Polybasic speculative decoding (Wang et al. 2510.26527): an intermediate model filters drafts before the target."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.errors import ModelUnavailable
from specviz.methods.registry import IN_DISTRIBUTION, Card, TextResources, choice, number, parts

INTERMEDIATES = ("int4", "int8", "fewer_layers", "plain_copy", "small_draft")
AUTO = ("int4", "int8", "small_draft")


@dataclass(frozen=True)
class Parameters:
    """The paper uses the target in 4 bits as the intermediate model, with EAGLE-2's drafter, and states no values of K and μ."""

    middle: str = choice(
        "auto",
        ("auto", *INTERMEDIATES, "draft"),
        "Intermediate model. Auto: the draft you named, else the model with the largest expected speed-up on this machine.",
    )
    drafter: str = choice(
        "auto", ("auto", "eagle3", "eagle", "copy"), "Drafter. Auto: EAGLE-3, or copies of the context if you named a draft."
    )
    gathered: int = number(
        0, 0, 32, "μ: tokens from the intermediate model per target pass; 0 chooses the fastest number.", "tokens"
    )
    depth: int = number(2, 1, 8, "K: depth of the drafter's tree.", "levels")
    width: int = number(3, 1, 10, "Beam width of the drafter's tree; 1 drafts a chain.", "nodes")
    nodes: int = number(0, 0, 32, "Nodes of the drafter's tree; 0 chooses the fastest number in every round.", "nodes")


@Card(name="polybasic", exactness=IN_DISTRIBUTION, family="model", parameters=Parameters, weights=("eagle3",), needs_draft=True)
def compose(parameters: Parameters, resources: TextResources) -> parts.Composition:
    from specviz.methods.polybasic.cascade import Cascade
    from specviz.methods.polybasic.forecast import ChainLengths, weigh

    below = parameters.drafter
    if below == "auto":
        below = "copy" if resources.draft_name or parameters.middle == "draft" else "eagle3"
    network = None if below == "copy" else resources.drafter_weights(below)
    taps: tuple[int, ...] = () if network is None else tuple(network.config.taps)
    forward = 0.0 if network is None else resources.forward_cost(network, parameters.width, taught=False)
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
        candidates.append(weigh(intermediate, resources.cost_curve(), forward, known, nodes, parameters.gathered))
    if not candidates:
        raise refused[0]
    best = max(candidates, key=lambda candidate: candidate.gain)
    middle = best.intermediate
    # Command that calibrates this chain; calibrate supports only two kinds of chains.
    named = kinds == ("draft",)
    recipe = f"python -m specviz calibrate polybasic --target {resources.target.name}"
    recipe += f" --draft {resources.draft_name}" if named else ""
    if below != ("copy" if named else "eagle3") or (resources.draft_name and not named):
        recipe = ""
    rest = (parts.Match(), best.block, taps, best.forecast, resources.target.eos_ids)
    controller: parts.Controller
    if network is None:
        controller = Cascade(middle, parts.PromptCopy(3, 2, parameters.depth, True, True), parts.ChainBuilder(), *rest)
    else:
        cost = middle.cost()
        size = parameters.nodes or parts.SpeedupPolicy.on(cost, forward=forward / cost.at(1))
        builder = parts.Dynamic(parameters.depth, parameters.width if middle.branches else 1, size)
        controller = cascade = Cascade(middle, parts.FeatureDrafter(network), builder, *rest)
        if not middle.branches and middle.device.type == "cuda":
            builder.read = cascade.read
    warnings = tuple(word for word in (*middle.warnings, best.warning(candidates, recipe)) if word)
    return parts.Composition(controller, parts.Rejection(), taps, f"{middle.title}, {below} below it", warnings)
