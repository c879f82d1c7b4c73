"""Dynamic Depth Decoding (Brown et al. 2409.00142): an EAGLE-2 tree that stops growing once its beam holds little mass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.dynamic_tree import NODES, WIDTH, tree_costs
from specviz.methods.parameters import choice, number
from specviz.methods.registry import TOKEN_EXACT, Card, Paper

if TYPE_CHECKING:
    from specviz.drafting.trees.dynamic import SpeedupMaximising
    from specviz.engine.interfaces import Composition
    from specviz.methods.ddd.depth import BeamMass
    from specviz.methods.resources import MethodResources


@dataclass(frozen=True)
class Parameters:
    """The paper's values are depth 11, width 10, 59 nodes, tests at levels 5, 7 and 9, threshold -0.3."""

    threshold: str = choice(
        "calibrated",
        ("calibrated", "paper", "own"),
        "Least log-probability of the beam to go on: what pays here by a calibration of the EAGLE-3 heads that ship (for "
        "others the paper's is taken, and said), the paper's -0.3, or log_mass below.",
    )
    log_mass: float = number(-1.5, -12.0, 0.0, "The threshold when it is your own; -0.3 is 74 % of the mass.", step=0.05)
    levels: str = choice(
        "matching",
        ("matching", "every", "published"),
        "Where the mass is tested: with the paper's threshold at its levels 5, 7 and 9, as a test made its GPU wait, and "
        "with another one at every level, as here it costs nothing; or always at every level; or always at those three.",
    )
    depth: int = number(8, 1, 12, "Deepest level a round may reach; the paper's value is 11.", "levels")
    width: int = WIDTH
    nodes: int = NODES
    drafter: str = choice("eagle3", ("eagle", "eagle3"), "Whose drafter; the paper's is EAGLE's.")


@Card(
    name="ddd",
    title="Dynamic Depth Decoding",
    summary="Before each deeper level: does the beam still hold enough of the drafter's probability? If not, verify now.",
    exactness=TOKEN_EXACT,
    family="features",
    claim="3.16× on average on Vicuna and LLaMA2-Chat, 4 % over EAGLE-2, with a threshold of −0.3.",
    differs=(
        "On trees of 25 nodes, over twelve held-out prompts of six kinds, {ddd.forwards.value} drafter passes a round do "
        "instead of 8, at {ddd.tau.value} of the τ; the run is {ddd.speed.value} as fast as at fixed depth, {ddd.speed_4.value} "
        "as fast as with always 4 levels. By default {speed.ddd.greedy} with τ {speed.ddd.tau} at temperature 0, "
        "{speed.ddd.warm} with {speed.ddd.tau_warm} at 1, over sixty prompts. The threshold is the one that would have written "
        "most on ten greedy prompts for what passes cost here."
    ),
    paper=Paper("Dynamic Depth Decoding: Faster Speculative Decoding for LLMs", "Brown et al.", 2024, "2409.00142"),
    look_at="The gauge beside each level: it empties as the beam loses mass, and below the line no deeper level is drafted.",
    parameters=Parameters,
    weights=("eagle3",),
    pair='`python -m specviz run --method ddd --target qwen3-1.7b --draft AngelSlim/Qwen3-1.7B_eagle3 --prompt "Why?"` with the '
    "paper's threshold, since ours is calibrated on the heads that ship; for heads of EAGLE-1/2, which the paper has, add "
    "`--param drafter=eagle`",
)
def compose(parameters: Parameters, resources: MethodResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
    from specviz.drafting.trees.dynamic import SHARPER, Dynamic
    from specviz.engine.controller import single_drafter

    network = resources.drafter_weights(parameters.drafter)
    needed = not parameters.nodes or parameters.threshold == "calibrated"
    costs = tree_costs(resources, network, parameters.width) if needed else None
    stop, warnings = _stop(parameters, resources, None if costs is None else costs.now())
    pays = None if parameters.nodes else costs
    # A threshold is valid only for the probabilities on which it was calibrated.
    cooled = 0.0 if warnings or parameters.threshold == "paper" else SHARPER
    builder = Dynamic(parameters.depth, parameters.width, parameters.nodes, stop, pays, cooled)
    return single_drafter(FeatureDrafter(network), builder, Match(), network.config.taps, parameters.drafter, warnings)


def _stop(
    parameters: Parameters, resources: MethodResources, costs: SpeedupMaximising | None
) -> tuple[BeamMass, tuple[str, ...]]:  # fmt: skip
    """Return the stop rule, and warnings for the user. Shipped heads draft only for their calibration target."""
    from specviz.drafting.trees.dynamic import ahead_on
    from specviz.methods.ddd.depth import PUBLISHED_LEVELS, PUBLISHED_THRESHOLD, BeamMass, CalibratedDepth

    below: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()
    threshold, forward = PUBLISHED_THRESHOLD, None
    if parameters.threshold == "calibrated":
        calibration = CalibratedDepth.load(resources.tree_file("ddd"))
        if resources.uses_shipped_weights and calibration.drafter == parameters.drafter:
            assert costs is not None, "a threshold that is calibrated follows from costs"
            tested = PUBLISHED_LEVELS if parameters.levels == "published" else ()
            ahead = ahead_on(resources.target.device)
            threshold = calibration.threshold_that_pays(costs, parameters.depth, tested, parameters.nodes, ahead)
            below, forward = calibration.below(threshold), float(costs.forward / costs.cost[0])
        else:
            heads = parameters.drafter if resources.uses_shipped_weights else resources.draft_name
            warnings = (
                f"The threshold was calibrated on {calibration.drafter} for {calibration.target}, and this run drafts with "
                f"{heads}: it takes the paper's {PUBLISHED_THRESHOLD:g}. Choose threshold own to set one.",
            )
    elif parameters.threshold == "own":
        threshold = parameters.log_mass
    as_published = bool(warnings) or parameters.threshold == "paper"
    three = parameters.levels == "published" or (parameters.levels == "matching" and as_published)
    return BeamMass(threshold, PUBLISHED_LEVELS if three else (), below, forward), warnings
