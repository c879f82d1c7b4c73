"""UCBSpec, of BanditSpec (2505.15141), as UCB1: each round tells how good the drafter was that drafted, not the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.hedgespec.method import arm_names, choosing, recalled
from specviz.methods.parameters import number, switch
from specviz.methods.registry import Paper, method

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import TextResources

PAPER = Paper("BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms", "Hou et al.", 2025, "2505.15141", "ICML")


@dataclass(frozen=True)
class Parameters:
    """The bonus of an arm counts that arm's own rounds, as in UCB1."""

    gamma: int = number(5, 1, 12, "Tokens drafted in a round.", "tokens")
    doubt: float = number(0.5, 0.0, 6.0, "How much an arm that was tried rarely is trusted; UCB1's value is 2.", step=0.25)
    keep: float = number(1.0, 0.8, 1.0, "What is left of the past after each round; 1 never forgets.", step=0.01)
    remember: bool = switch(True, "Go on from your last run's rewards instead of starting anew.")


@method(
    name="bandit_ucb",
    title="UCBSpec (UCB1)",
    summary="The same arms, chosen by mean reward plus doubt: an arm is only known by its own rounds.",
    exactness="exact",
    family="model",
    claim="105.7 tokens a second beside EAGLE-2's 98.2, Llama 3 8B on Spec-Bench.",
    differs=(
        "Here the bonus is UCB1's, √(doubt · ln t / n), with n the arm's own rounds and a quarter of the doubt. τ is "
        "{arms.bandit_ucb.tau} where full information has {arms.not_a_bandit.tau} (T = 0, five subjects): a hundred rounds end "
        "while it still tries arms."
    ),
    paper=PAPER,
    look_at="Every arm must draft badly for a while before it is known to be bad, and again after a change of subject.",
    parameters=Parameters,
    weights=("small_draft", "arms"),
)
def compose(parameters: Parameters, parts: TextResources) -> Composition:
    from specviz.methods.hedgespec.online_learners import UpperConfidence

    chooser = recalled(parts, "ucb", "", parameters.remember, lambda: UpperConfidence(len(arm_names(parts))))
    chooser.doubt, chooser.keep = parameters.doubt, parameters.keep
    return choosing(parts, chooser, parameters.gamma)
