"""Not-a-Bandit (2510.20064): the verified text evaluates every drafter, so choosing a drafter is not a bandit problem.

The paper's algorithm, HedgeSpec, runs NormalHedge (Chaudhuri, Freund, Hsu 2009) on the losses of all drafters. Here a discount
``keep`` below 1 lets the choice follow a change of subject; as published, NormalHedge has no discount. Losses and rewards are
in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from specviz.errors import BadInput
from specviz.methods.registry import IN_DISTRIBUTION, Card, TextResources, choice, number, parts, switch

DOMAINS = ("code", "maths", "stories", "translation")
COPY = "copy"
ARMS = (*DOMAINS, COPY)


@dataclass(frozen=True)
class Parameters:
    """The arms are four small draft models and prompt lookup, or the draft models that the user named and prompt lookup.

    The paper uses seven EAGLE-3 heads per target.
    """

    gamma: int = number(5, 1, 12, "Draft length; K in the paper.", "tokens")
    loss: str = choice(
        "length", ("length", "acceptance"), "Compare arms by expected tokens per round, or by acceptance of the first token."
    )
    keep: float = number(0.98, 0.8, 1.0, "Discount per token on past losses; 1: no discount, as published.", step=0.01)
    debt: float = number(1.0, 0.0, 1000.0, "How far an arm's regret may fall below 0; 1000: no bound, as published.", step=0.5)
    arm: str = choice("all", ("all", *ARMS), "Let all arms compete, or always draft with one arm.")
    remember: bool = switch(True, "Start with the weights of your last run.")


@Card(name="not_a_bandit", exactness=IN_DISTRIBUTION, family="model", parameters=Parameters, weights=("small_draft", "arms"))
def compose(parameters: Parameters, resources: TextResources) -> parts.Composition:
    names = arm_names(resources)
    if parameters.arm != "all":
        if parameters.arm not in names:
            raise BadInput(
                f"There is no arm {parameters.arm} among the named draft models: choose all or copy, or name one draft model."
            )
        return choosing(resources, Fixed(len(names), names.index(parameters.arm)), parameters.gamma, parameters.loss)
    chooser = recalled(resources, "hedge", parameters.loss, parameters.remember, lambda: NormalHedge(len(names)))
    chooser.keep, chooser.debt = parameters.keep, parameters.debt
    return choosing(resources, chooser, parameters.gamma, parameters.loss)


def arm_names(resources: TextResources) -> tuple[str, ...]:
    """Return the names of the arms: the shipped ones, or the draft models that the user named and ``COPY``."""
    return ARMS if resources.uses_shipped_weights else (*resources.draft_models(), COPY)


Learner = TypeVar("Learner")


def recalled(resources: TextResources, kind: str, loss: str, remember: bool, make: Callable[[], Learner]) -> Learner:
    """Return the chooser of the user's last run with the same arms and ``loss``, or a new one from ``make``.

    ``remember``: if False, always return a new chooser.
    """
    return resources.remember((kind, resources.target.name, loss, *arm_names(resources)), make) if remember else make()


def choosing(resources: TextResources, chooser: Chooser, gamma: int, loss: str = "length") -> parts.Composition:
    """Compose all arms with a ``chooser`` that selects an arm in every round."""
    from specviz.methods.hedgespec.selection import Arm, DrafterSelector, JudgedCopy, JudgedModel

    if resources.uses_shipped_weights:
        shipped, length, draft_name = resources.drafter_weights("arms"), resources.target.context_length, "arms"
        models = {name: parts.DraftModel(name, length, partial(parts.SmallModel, shipped[name])) for name in DOMAINS}
    else:
        models = resources.draft_models()
        draft_name = ", ".join(models)
    arms = [
        Arm(name, JudgedModel(model.open, model.context_length), parts.Sampled(parts.chain(gamma)))
        for name, model in models.items()
    ]
    arms.append(Arm(COPY, JudgedCopy(3, 1, gamma), parts.ChainBuilder()))
    warnings = tuple(dict.fromkeys(warning for model in models.values() for warning in model.warnings))
    selector = DrafterSelector(arms, chooser, gamma, loss)
    return parts.Composition(selector, parts.Rejection(), draft_name=draft_name, warnings=warnings)


class Chooser:
    """Online learner that selects an arm in every round. A subclass overrides the method for its kind of feedback.

    ``full_information``: whether the chooser learns from the losses of all arms.
    """

    full_information = False

    def probabilities(self) -> list[float]:
        """Return the probability of selecting each arm in the next round."""
        raise LookupError("a subclass of Chooser must define probabilities")

    def learn(self, losses: Sequence[float]) -> None:
        """Update from the losses [arm] at one position of the text."""

    def update_reward(self, arm: int, reward: float) -> None:
        """Update from the reward of the arm that drafted the round."""


class Fixed(Chooser):
    """Chooser that always selects the same arm."""

    def __init__(self, arms: int, arm: int) -> None:
        self._probabilities = [float(index == arm) for index in range(arms)]

    def probabilities(self) -> list[float]:
        return list(self._probabilities)


class NormalHedge(Chooser):
    """NormalHedge: weights from regrets, without a learning rate. Arms with a regret below 0 get weight 0.

    ``keep``: discount per update. ``debt``: bound on negative regrets, so that an arm recovers quickly after a change of subject.
    """

    full_information = True

    def __init__(self, arms: int, keep: float = 1.0, debt: float = math.inf) -> None:
        self.keep, self.debt = keep, debt
        self.regrets = [0.0] * arms

    def probabilities(self) -> list[float]:
        return normal_hedge(self.regrets)

    def learn(self, losses: Sequence[float]) -> None:
        mixed = sum(weight * loss for weight, loss in zip(self.probabilities(), losses, strict=True))
        self.regrets = [
            max(-self.debt, self.keep * regret + mixed - loss) for regret, loss in zip(self.regrets, losses, strict=True)
        ]


def normal_hedge(regrets: Sequence[float]) -> list[float]:
    """Return weights proportional to ``[R_j]+ / c * exp([R_j]+**2 / 2c)``, with c such that the mean of the exponentials is e.

    The weights are uniform if no regret R_j is positive. Exponents are at most log(e * arms), so nothing overflows.
    """
    positive = [max(0.0, regret) for regret in regrets]
    most, arms = max(positive), len(positive)
    if most <= 1e-12:
        return [1.0 / arms] * arms
    scaled = [regret / most for regret in positive]  # so c is in units of most**2
    low, high = 0.5 / (1.0 + math.log(arms)), 0.5 * arms
    for _ in range(100):
        c = (low + high) / 2
        if sum(math.exp(x * x / (2 * c)) for x in scaled) / arms > math.e:
            low = c
        else:
            high = c
    weights = [x * math.exp(x * x / (2 * high)) for x in scaled]
    total = sum(weights)
    return [weight / total for weight in weights]
