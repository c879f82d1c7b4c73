"""Bandits over Not-a-Bandit's arms, from BanditSpec (2505.15141): each round rewards only the arm that drafted.

UCBSpec here is UCB1, with the count of each arm's own rounds in the bonus. EXP3Spec is Auer's EXP3 (Auer et al. 2002).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specviz.methods.hedgespec import Chooser, arm_names, choosing, recalled
from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper, number, parts, switch

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
def ucb(parameters: UcbParameters, resources: parts.TextResources) -> parts.Composition:
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
def exp3(parameters: Exp3Parameters, resources: parts.TextResources) -> parts.Composition:
    chooser = recalled(resources, "exp3", "", parameters.remember, lambda: ExponentialWeights(len(arm_names(resources))))
    chooser.explore, chooser.keep = parameters.explore, parameters.keep
    return choosing(resources, chooser, parameters.gamma)


class UpperConfidence(Chooser):
    """UCB1: each arm once, then the arm with the largest mean reward plus confidence bonus."""

    def __init__(self, arms: int, doubt: float = 2.0, keep: float = 1.0) -> None:
        self.doubt, self.keep = doubt, keep
        self.rounds, self.rewards = [0.0] * arms, [0.0] * arms

    def probabilities(self) -> list[float]:
        unseen = next((arm for arm, rounds in enumerate(self.rounds) if rounds < 1e-3), None)
        log_rounds = math.log(max(1.0, sum(self.rounds)))
        values = [
            reward / rounds + math.sqrt(self.doubt * log_rounds / rounds) if rounds >= 1e-3 else 0.0
            for reward, rounds in zip(self.rewards, self.rounds, strict=True)
        ]
        best = values.index(max(values)) if unseen is None else unseen
        return [float(arm == best) for arm in range(len(values))]

    def update_reward(self, arm: int, reward: float) -> None:
        self.rounds = [self.keep * rounds for rounds in self.rounds]
        self.rewards = [self.keep * total for total in self.rewards]
        self.rounds[arm] += 1.0
        self.rewards[arm] += reward


class ExponentialWeights(Chooser):
    """EXP3: exponential weights of rewards, each divided by the probability of observing it."""

    def __init__(self, arms: int, explore: float = 0.15, keep: float = 1.0) -> None:
        self.explore, self.keep = explore, keep
        self.gains = [0.0] * arms

    def probabilities(self) -> list[float]:
        arms, most = len(self.gains), max(self.gains)
        weights = [math.exp(self.explore / arms * (gain - most)) for gain in self.gains]
        total = sum(weights)
        return [(1 - self.explore) * weight / total + self.explore / arms for weight in weights]

    def update_reward(self, arm: int, reward: float) -> None:
        probability = self.probabilities()[arm]
        self.gains = [self.keep * gain for gain in self.gains]
        self.gains[arm] += reward / probability
