"""Bandits over Not-a-Bandit's arms, from BanditSpec (2505.15141): each round rewards only the arm that drafted.

UCBSpec here is UCB1. EXP3Spec is Auer's EXP3: exponential weights on rewards divided by their probability of being observed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.hedgespec.method import arm_names, choosing, recalled
from specviz.methods.parameters import number, switch
from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import TextResources

PAPER = Paper("BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms", "Hou et al.", 2025, "2505.15141", "ICML")
GAMMA = number(5, 1, 12, "Tokens drafted in a round.", "tokens")
KEEP = number(1.0, 0.8, 1.0, "What is left of the past after each round; 1 never forgets.", step=0.01)


@dataclass(frozen=True)
class UcbParameters:
    """An arm's bonus depends on its own number of rounds, as in UCB1."""

    gamma: int = GAMMA
    doubt: float = number(0.5, 0.0, 6.0, "How much an arm that was tried rarely is trusted; UCB1's value is 2.", step=0.25)
    keep: float = KEEP
    remember: bool = switch(True, "Go on from your last run's rewards instead of starting anew.")


@Card(
    name="bandit_ucb",
    title="UCBSpec (UCB1)",
    summary="The same arms, chosen by mean reward plus doubt: an arm is only known by its own rounds.",
    exactness=IN_DISTRIBUTION,
    family="model",
    claim="105.7 tokens a second beside EAGLE-2's 98.2, Llama 3 8B on Spec-Bench.",
    differs=(
        "Here the bonus is UCB1's, √(doubt · ln t / n), with n the arm's own rounds and a quarter of the doubt. τ is "
        "{arms.bandit_ucb.tau} where full information has {arms.not_a_bandit.tau} (T = 0, five subjects): a hundred rounds end "
        "while it still tries arms."
    ),
    paper=PAPER,
    look_at="Every arm must draft badly for a while before it is known to be bad, and again after a change of subject.",
    parameters=UcbParameters,
    weights=("small_draft", "arms"),
)
def ucb(parameters: UcbParameters, resources: TextResources) -> Composition:
    from specviz.methods.hedgespec.online_learners import UpperConfidence

    chooser = recalled(resources, "ucb", "", parameters.remember, lambda: UpperConfidence(len(arm_names(resources))))
    chooser.doubt, chooser.keep = parameters.doubt, parameters.keep
    return choosing(resources, chooser, parameters.gamma)


@dataclass(frozen=True)
class Exp3Parameters:
    """Auer's EXP3 (Auer et al. 2002), since the paper's exact update was not available to us."""

    gamma: int = GAMMA
    explore: float = number(
        0.15, 0.01, 1.0, "Share of the rounds that go to arms at random, and the step of the weights.", step=0.05
    )
    keep: float = KEEP
    remember: bool = switch(True, "Go on from your last run's gains instead of starting anew.")


@Card(
    name="bandit_exp3",
    title="EXP3Spec (EXP3)",
    summary="The same arms, drawn by exponential weights: made for rewards that change, slow with few rounds.",
    exactness=IN_DISTRIBUTION,
    family="model",
    claim="τ 4.86 beside 7.15 with full information, Llama 3.1 8B over seven domains (measured by the latter's authors).",
    differs=(
        "Here the update is Auer's EXP3; the paper's own we could not read. τ is {arms.bandit_exp3.tau} where full information "
        "has {arms.not_a_bandit.tau} (T = 0, a stream of five subjects): a run of a hundred rounds is mostly exploration."
    ),
    paper=PAPER,
    look_at="Weights creep: a reward that was seen rarely weighs much when it is seen, and is mostly luck.",
    parameters=Exp3Parameters,
    weights=("small_draft", "arms"),
)
def exp3(parameters: Exp3Parameters, resources: TextResources) -> Composition:
    from specviz.methods.hedgespec.online_learners import ExponentialWeights

    chooser = recalled(resources, "exp3", "", parameters.remember, lambda: ExponentialWeights(len(arm_names(resources))))
    chooser.explore, chooser.keep = parameters.explore, parameters.keep
    return choosing(resources, chooser, parameters.gamma)
