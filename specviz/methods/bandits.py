"""BanditSpec (2505.15141): bandits that choose among Not-a-Bandit's arms, rewarding only the arm that drafted.

UCBSpec is implemented as UCB1, EXP3Spec as Auer's EXP3 (Auer et al. 2002).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specviz.methods.hedgespec import Chooser, arm_names, choosing, recalled
from specviz.methods.registry import IN_DISTRIBUTION, Card, TextResources, number, parts, switch

GAMMA = number(5, 1, 12, "Draft length.", "tokens")
KEEP = number(1.0, 0.8, 1.0, "Discount per round on past rewards; 1: no discount.", step=0.01)


@dataclass(frozen=True)
class UcbParameters:
    """Parameters of UCB1 with a discount."""

    gamma: int = GAMMA
    doubt: float = number(0.5, 0.0, 6.0, "Exploration bonus for rarely tried arms; UCB1 uses 2.", step=0.25)
    keep: float = KEEP
    remember: bool = switch(True, "Start with the rewards of your last run.")


@Card(name="bandit_ucb", exactness=IN_DISTRIBUTION, family="model", parameters=UcbParameters, weights=("small_draft", "arms"))
def ucb(parameters: UcbParameters, resources: TextResources) -> parts.Composition:
    chooser = recalled(resources, "ucb", "", parameters.remember, lambda: UpperConfidence(len(arm_names(resources))))
    chooser.doubt, chooser.keep = parameters.doubt, parameters.keep
    return choosing(resources, chooser, parameters.gamma)


@dataclass(frozen=True)
class Exp3Parameters:
    """Parameters of Auer's EXP3 (Auer et al. 2002) with a discount; the paper's exact update was not available."""

    gamma: int = GAMMA
    explore: float = number(
        0.15, 0.01, 1.0, "γ of EXP3: share of rounds with a random arm, and learning rate of the weights.", step=0.05
    )
    keep: float = KEEP
    remember: bool = switch(True, "Start with the gains of your last run.")


@Card(name="bandit_exp3", exactness=IN_DISTRIBUTION, family="model", parameters=Exp3Parameters, weights=("small_draft", "arms"))
def exp3(parameters: Exp3Parameters, resources: TextResources) -> parts.Composition:
    chooser = recalled(resources, "exp3", "", parameters.remember, lambda: ExponentialWeights(len(arm_names(resources))))
    chooser.explore, chooser.keep = parameters.explore, parameters.keep
    return choosing(resources, chooser, parameters.gamma)


class UpperConfidence(Chooser):
    """UCB1: first every arm once, then the arm with the largest sum of mean reward and exploration bonus."""

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
    """EXP3: exponential weights over rewards, each divided by the probability of drawing the rewarded arm."""

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
