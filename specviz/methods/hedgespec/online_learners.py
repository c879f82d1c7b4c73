"""Online learners that select a drafter, from all drafters' losses (full information) or the played one's reward (bandit).

*Full information*: NormalHedge (Chaudhuri, Freund, Hsu 2009), the choice of HedgeSpec (arXiv 2510.20064). *Bandits*, for
comparison: UCB1 and EXP3 (Auer et al. 2002) as in BanditSpec (arXiv 2505.15141), with the count of each arm's own rounds in the
bonus. ``keep`` below 1 discounts the past with every update, so that the learner follows a change of subject; NormalHedge as
published has no discount. Losses and rewards lie in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

_ROUNDS = 100


class Chooser(Protocol):
    """An online learner. ``full_information`` is True if it learns from every arm's loss."""

    full_information: bool

    def probabilities(self) -> list[float]:
        """Return each arm's probability of drafting next."""

    def learn(self, losses: Sequence[float]) -> None:
        """Update from every arm's loss at one position of the text."""

    def update_reward(self, arm: int, reward: float) -> None:
        """Update from the reward of the round's drafting arm."""


class Fixed:
    """Chooser that always selects the same arm."""

    full_information = False

    def __init__(self, arms: int, arm: int) -> None:
        self._probabilities = [float(index == arm) for index in range(arms)]

    def probabilities(self) -> list[float]:
        return list(self._probabilities)

    def learn(self, losses: Sequence[float]) -> None:
        """Ignored: the choice is fixed."""

    def update_reward(self, arm: int, reward: float) -> None:
        """Ignored: the choice is fixed."""


class NormalHedge:
    """Weights from regrets, without a learning rate: arms worse than the mixture get weight 0.

    No arm's regret falls below -``debt``. So after a change of subject, an arm need not first make up for all the time in which
    another was better.
    """

    full_information = True

    def __init__(self, arms: int, keep: float = 1.0, debt: float = math.inf) -> None:
        self.keep = keep
        self.debt = debt
        self.regrets = [0.0] * arms

    def probabilities(self) -> list[float]:
        return normal_hedge(self.regrets)

    def learn(self, losses: Sequence[float]) -> None:
        mixed = sum(weight * loss for weight, loss in zip(self.probabilities(), losses, strict=True))
        self.regrets = [
            max(-self.debt, self.keep * regret + mixed - loss) for regret, loss in zip(self.regrets, losses, strict=True)
        ]

    def update_reward(self, arm: int, reward: float) -> None:
        """Ignored: losses already include it."""


def normal_hedge(regrets: Sequence[float]) -> list[float]:
    """Return ``w_j`` proportional to ``[R_j]+ / c * exp([R_j]+**2 / 2c)``, with c such that the exponentials' mean is e.

    Uniform if no arm did better than the mixture. The largest exponent is bounded by log(e * arms), so nothing overflows.
    """
    positive = [max(0.0, regret) for regret in regrets]
    most, arms = max(positive), len(positive)
    if most <= 1e-12:
        return [1.0 / arms] * arms
    scaled = [regret / most for regret in positive]  # c is then in units of most**2
    low, high = 0.5 / (1.0 + math.log(arms)), 0.5 * arms
    for _ in range(_ROUNDS):
        c = (low + high) / 2
        if sum(math.exp(x * x / (2 * c)) for x in scaled) / arms > math.e:
            low = c
        else:
            high = c
    weights = [x * math.exp(x * x / (2 * high)) for x in scaled]
    total = sum(weights)
    return [weight / total for weight in weights]


class UpperConfidence:
    """UCB1: each arm once, then the arm with the largest mean reward plus confidence bonus."""

    full_information = False

    def __init__(self, arms: int, doubt: float = 2.0, keep: float = 1.0) -> None:
        self.doubt = doubt
        self.keep = keep
        self.rounds = [0.0] * arms
        self.rewards = [0.0] * arms

    def probabilities(self) -> list[float]:
        unseen = next((arm for arm, rounds in enumerate(self.rounds) if rounds < 1e-3), None)
        log_rounds = math.log(max(1.0, sum(self.rounds)))
        values = [
            reward / rounds + math.sqrt(self.doubt * log_rounds / rounds) if rounds >= 1e-3 else 0.0
            for reward, rounds in zip(self.rewards, self.rounds, strict=True)
        ]
        best = values.index(max(values)) if unseen is None else unseen
        return [float(arm == best) for arm in range(len(values))]

    def learn(self, losses: Sequence[float]) -> None:
        """Ignored: a bandit receives only rewards."""

    def update_reward(self, arm: int, reward: float) -> None:
        self.rounds = [self.keep * rounds for rounds in self.rounds]
        self.rewards = [self.keep * total for total in self.rewards]
        self.rounds[arm] += 1.0
        self.rewards[arm] += reward


class ExponentialWeights:
    """EXP3: exponential weights of rewards, each divided by the probability of observing it."""

    full_information = False

    def __init__(self, arms: int, explore: float = 0.15, keep: float = 1.0) -> None:
        self.explore = explore
        self.keep = keep
        self.gains = [0.0] * arms

    def probabilities(self) -> list[float]:
        arms, most = len(self.gains), max(self.gains)
        weights = [math.exp(self.explore / arms * (gain - most)) for gain in self.gains]
        total = sum(weights)
        return [(1 - self.explore) * weight / total + self.explore / arms for weight in weights]

    def learn(self, losses: Sequence[float]) -> None:
        """Ignored: a bandit receives only rewards."""

    def update_reward(self, arm: int, reward: float) -> None:
        probability = self.probabilities()[arm]
        self.gains = [self.keep * gain for gain in self.gains]
        self.gains[arm] += reward / probability
