"""EXP3Spec, of BanditSpec (2505.15141), as Auer's EXP3: exponential weights on rewards over their probability to be seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.bandit_ucb import PAPER
from specviz.methods.hedgespec.method import arm_names, choosing, recalled
from specviz.methods.parameters import number, switch
from specviz.methods.registry import method

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import TextResources


@dataclass(frozen=True)
class Parameters:
    """We could not read the paper's exact update: this is Auer's EXP3 (Auer et al. 2002)."""

    gamma: int = number(5, 1, 12, "Tokens drafted in a round.", "tokens")
    explore: float = number(
        0.15, 0.01, 1.0, "Share of the rounds that go to arms at random, and the step of the weights.", step=0.05
    )
    keep: float = number(1.0, 0.8, 1.0, "What is left of the past after each round; 1 never forgets.", step=0.01)
    remember: bool = switch(True, "Go on from your last run's gains instead of starting anew.")


@method(
    name="bandit_exp3",
    title="EXP3Spec (EXP3)",
    summary="The same arms, drawn by exponential weights: made for rewards that change, slow with few rounds.",
    exactness="exact",
    family="model",
    claim="τ 4.86 beside 7.15 with full information, Llama 3.1 8B over seven domains (measured by the latter's authors).",
    differs=(
        "Here the update is Auer's EXP3; the paper's own we could not read. τ is {arms.bandit_exp3.tau} where full information "
        "has {arms.not_a_bandit.tau} (T = 0, a stream of five subjects): a run of a hundred rounds is mostly exploration."
    ),
    paper=PAPER,
    look_at="Weights creep: a reward that was seen rarely weighs much when it is seen, and is mostly luck.",
    parameters=Parameters,
    weights=("small_draft", "arms"),
)
def compose(parameters: Parameters, parts: TextResources) -> Composition:
    from specviz.methods.hedgespec.online_learners import ExponentialWeights

    chooser = recalled(parts, "exp3", "", parameters.remember, lambda: ExponentialWeights(len(arm_names(parts))))
    chooser.explore, chooser.keep = parameters.explore, parameters.keep
    return choosing(parts, chooser, parameters.gamma)
