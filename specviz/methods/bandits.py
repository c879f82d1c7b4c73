"""Bandits over Not-a-Bandit's arms, from BanditSpec (2505.15141): each round rewards only the arm that drafted.

UCBSpec here is UCB1, with the count of each arm's own rounds in the bonus. EXP3Spec is Auer's EXP3 (Auer et al. 2002).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specviz.methods.hedgespec import Chooser, arm_names, choosing, recalled
from specviz.methods.registry import IN_DISTRIBUTION, Card, number, parts, switch

GAMMA = number(5, 1, 12, "Tokens drafted in a round.", "tokens")
KEEP = number(1.0, 0.8, 1.0, "Share of the past kept after each round; 1 never forgets.", step=0.01)


@dataclass(frozen=True)
class UcbParameters:
    """An arm's bonus depends on its own number of rounds, as in UCB1."""

    gamma: int = GAMMA
    doubt: float = number(0.5, 0.0, 6.0, "Size of the bonus for rarely tried arms; UCB1's value is 2.", step=0.25)
    keep: float = KEEP
    remember: bool = switch(True, "Continue from your last run's rewards instead of starting over.")


@Card(name="bandit_ucb", exactness=IN_DISTRIBUTION, family="model", parameters=UcbParameters, weights=("small_draft", "arms"))
def ucb(parameters: UcbParameters, resources: parts.TextResources) -> parts.Composition:
    chooser = recalled(resources, "ucb", "", parameters.remember, lambda: UpperConfidence(len(arm_names(resources))))
    chooser.doubt, chooser.keep = parameters.doubt, parameters.keep
    return choosing(resources, chooser, parameters.gamma)


@dataclass(frozen=True)
class Exp3Parameters:
    """Auer's EXP3 (Auer et al. 2002), since the paper's exact update was not available to us."""

    gamma: int = GAMMA
    explore: float = number(
        0.15, 0.01, 1.0, "Share of the rounds in which the arm is random, and the weights' step size.", step=0.05
    )
    keep: float = KEEP
    remember: bool = switch(True, "Continue from your last run's gains instead of starting over.")


@Card(name="bandit_exp3", exactness=IN_DISTRIBUTION, family="model", parameters=Exp3Parameters, weights=("small_draft", "arms"))
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
