"""Not-a-Bandit (2510.20064): the verified text evaluates every drafter, so choosing among them is not a bandit problem.

The paper's choice, HedgeSpec, is NormalHedge (Chaudhuri, Freund, Hsu 2009) over every drafter's loss. ``keep`` below 1 discounts
the past with every update, so that a chooser follows a change of subject; NormalHedge as published has no discount. Losses and
rewards lie in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from specviz.errors import BadInput
from specviz.methods.registry import IN_DISTRIBUTION, Card, choice, number, parts, switch

DOMAINS = ("code", "maths", "stories", "translation")
COPY = "copy"
ARMS = (*DOMAINS, COPY)


@dataclass(frozen=True)
class Parameters:
    """The paper has seven EAGLE-3 heads per target. Here the arms are prompt lookup and four small draft models, or the draft
    models that the user named, separated by commas."""

    gamma: int = number(5, 1, 12, "Tokens drafted in a round; the paper's K.", "tokens")
    loss: str = choice("length", ("length", "acceptance"), "Arms are compared by expected tokens per round, or by first drafts.")
    keep: float = number(0.98, 0.8, 1.0, "Share of the past kept after each token; 1, as published, never forgets.", step=0.01)
    debt: float = number(1.0, 0.0, 1000.0, "How far an arm may fall behind, in losses; 1000 is no bound, as published.", step=0.5)
    arm: str = choice("all", ("all", *ARMS), "All arms compete, or one of them always drafts.")
    remember: bool = switch(True, "Continue from your last run's weights instead of starting over.")


@Card(name="not_a_bandit", exactness=IN_DISTRIBUTION, family="model", parameters=Parameters, weights=("small_draft", "arms"))
def compose(parameters: Parameters, resources: parts.TextResources) -> parts.Composition:
    names = arm_names(resources)
    if parameters.arm != "all":
        if parameters.arm not in names:
            raise BadInput(f"There is no arm {parameters.arm} among the drafters named: choose all or copy, or name one drafter.")
        return choosing(resources, Fixed(len(names), names.index(parameters.arm)), parameters.gamma, parameters.loss)
    chooser = recalled(resources, "hedge", parameters.loss, parameters.remember, lambda: NormalHedge(len(names)))
    chooser.keep, chooser.debt = parameters.keep, parameters.debt
    return choosing(resources, chooser, parameters.gamma, parameters.loss)


def arm_names(resources: parts.TextResources) -> tuple[str, ...]:
    """Return the shipped arms, or the draft models that the user named and copying."""
    return ARMS if resources.uses_shipped_weights else (*resources.draft_models(), COPY)


Learner = TypeVar("Learner")


def recalled(resources: parts.TextResources, kind: str, loss: str, remember: bool, make: Callable[[], Learner]) -> Learner:
    """Return the chooser from this user's last run over the same arms, or a new one."""
    return resources.remember((kind, resources.target.name, loss, *arm_names(resources)), make) if remember else make()


def choosing(resources: parts.TextResources, chooser: Chooser, gamma: int, loss: str = "length") -> parts.Composition:
    """Compose all arms with ``chooser``, which selects one in each round."""
    from specviz.methods.hedgespec.selection import Arm, DrafterSelector, JudgedCopy, JudgedModel

    models: dict[str, parts.DraftModel] = {}
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
    arms.append(Arm(COPY, JudgedCopy(3, 1, gamma), parts.Copied()))
    warnings = tuple(dict.fromkeys(warning for model in models.values() for warning in model.warnings))
    selector = DrafterSelector(arms, chooser, gamma, loss)
    return parts.Composition(selector, parts.Rejection(), draft_name=draft_name, warnings=warnings)


class Chooser:
    """An online learner; feedback that it does not use is ignored. ``full_information`` is True if it learns from every arm's
    loss."""

    full_information = False

    def probabilities(self) -> list[float]:
        """Return each arm's probability of drafting next."""
        raise LookupError("a chooser has probabilities")

    def learn(self, losses: Sequence[float]) -> None:
        """Update from every arm's loss at one position of the text."""

    def update_reward(self, arm: int, reward: float) -> None:
        """Update from the reward of the round's drafting arm."""


class Fixed(Chooser):
    """Chooser that always selects the same arm."""

    def __init__(self, arms: int, arm: int) -> None:
        self._probabilities = [float(index == arm) for index in range(arms)]

    def probabilities(self) -> list[float]:
        return list(self._probabilities)


class NormalHedge(Chooser):
    """Weights from regrets, without a learning rate: arms worse than the mixture get weight 0.

    No arm's regret falls below -``debt``. So after a change of subject, an arm need not first make up for all the time in which
    another was better.
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
    """Return ``w_j`` proportional to ``[R_j]+ / c * exp([R_j]+**2 / 2c)``, with c such that the exponentials' mean is e.

    Uniform if no arm did better than the mixture. The largest exponent is bounded by log(e * arms), so nothing overflows.
    """
    positive = [max(0.0, regret) for regret in regrets]
    most, arms = max(positive), len(positive)
    if most <= 1e-12:
        return [1.0 / arms] * arms
    scaled = [regret / most for regret in positive]  # c is then in units of most**2
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
