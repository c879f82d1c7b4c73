"""Dynamic Depth Decoding (Brown et al. 2409.00142): a tree of EAGLE-2's kind that stops growing when its beam holds little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.parameters import choice, number
from specviz.methods.registry import Paper, method

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.parts import Parts


@dataclass(frozen=True)
class Parameters:
    """The paper's values are depth 11, width 10, 59 nodes, tests at levels 5, 7 and 9, threshold -0.3."""

    threshold: str = choice(
        "calibrated",
        ("calibrated", "paper", "own"),
        "Least log-probability of the beam to go on: found for this drafter, the paper's -0.3, or log_mass below.",
    )
    log_mass: float = number(-1.5, -12.0, 0.0, "The threshold when it is your own; -0.3 is 74 % of the mass.", step=0.05)
    levels: str = choice(
        "every",
        ("every", "published"),
        "Where the mass is tested. The paper tests at 5, 7 and 9, as a test made its GPU wait; here it costs nothing.",
    )
    depth: int = number(8, 1, 12, "Deepest level a round may reach; the paper's value is 11.", "levels")
    width: int = number(6, 1, 16, "Nodes in the beam, and children each of them offers; the paper's value is 10.", "nodes")
    nodes: int = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay in each round, the paper's value is 59.", "nodes")
    drafter: str = choice("eagle3", ("eagle", "eagle3"), "Whose drafter; the paper's is EAGLE's.")


@method(
    name="ddd",
    title="Dynamic Depth Decoding",
    summary="Before each deeper level: does the beam still hold enough of the drafter's probability? If not, verify now.",
    modality=("text",),
    exactness="exact",
    token_exact=True,
    family="features",
    claim="3.16× on average on Vicuna and LLaMA2-Chat, 4 % over EAGLE-2.",
    differs=(
        "Here, over six prompts, τ is EAGLE-3's 1.85 with 3.3 drafter forwards a step instead of 5, and the run 1.19 "
        "times as fast as the target alone instead of 1.12. The drafter had minutes of training, is seldom sure, and so "
        "most trees end early."
    ),
    paper=Paper("Dynamic Depth Decoding: Faster Speculative Decoding for LLMs", "Brown et al.", 2024, "2409.00142"),
    look_at="The gauge beside each level: it empties as the beam loses mass, and below the line no deeper level is drafted.",
    parameters=Parameters,
    weights=("eagle3",),
)
def compose(parameters: Parameters, parts: Parts) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.drafters.feature_drafter import FeatureDrafter
    from specviz.engine.controller import Steady
    from specviz.engine.interfaces import Composition
    from specviz.growth.depth import PUBLISHED_LEVELS, BeamMass
    from specviz.growth.dynamic import Dynamic, Paying

    network = parts.heads(parameters.drafter)
    levels = PUBLISHED_LEVELS if parameters.levels == "published" else ()
    stop = BeamMass(_threshold(parameters, parts), levels)
    pays = None if parameters.nodes else Paying.on(parts.cost_curve(), parts.target.tier)
    growth = Dynamic(parameters.depth, parameters.width, parameters.nodes, stop, pays)
    controller = Steady(FeatureDrafter(network), growth)
    return Composition(controller, Match(), network.config.taps, draft_name=parameters.drafter)


def _threshold(parameters: Parameters, parts: Parts) -> float:
    from specviz.growth.depth import PUBLISHED_THRESHOLD, CalibratedDepth

    if parameters.threshold == "own":
        return parameters.log_mass
    if parameters.threshold == "paper":
        return PUBLISHED_THRESHOLD
    return CalibratedDepth.load(parts.tree_file("ddd")).threshold
