"""Not-a-Bandit (2510.20064): the verified text evaluates every drafter, so choosing among them is not a bandit problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from specviz.methods.parameters import choice, number, switch
from specviz.methods.registry import IN_DISTRIBUTION, Card, Paper

if TYPE_CHECKING:
    from collections.abc import Callable

    from specviz.engine.interfaces import Composition
    from specviz.methods.hedgespec.online_learners import Chooser
    from specviz.methods.resources import TextResources

DOMAINS = ("code", "maths", "stories", "translation")
COPY = "copy"
ARMS = (*DOMAINS, COPY)


@dataclass(frozen=True)
class Parameters:
    """The paper has seven EAGLE-3 heads per target. Here the arms are prompt lookup and four small draft models, or the draft
    models that the user named, separated by commas."""

    gamma: int = number(5, 1, 12, "Tokens drafted in a round; the paper's K.", "tokens")
    loss: str = choice("length", ("length", "acceptance"), "What arms are compared by: expected tokens a round, or first drafts.")
    keep: float = number(0.98, 0.8, 1.0, "What is left of the past after each token; 1, as published, never forgets.", step=0.01)
    debt: float = number(1.0, 0.0, 1000.0, "How far an arm may fall behind, in losses; 1000 is as published: no bound.", step=0.5)
    arm: str = choice("all", ("all", *ARMS), "All arms compete, or one of them drafts always.")
    remember: bool = switch(True, "Go on from your last run's weights instead of starting anew.")


@Card(
    name="not_a_bandit",
    title="Not-a-Bandit",
    summary="Drafters for code, maths, stories, translation and copying; the text so far says which one should draft.",
    exactness=IN_DISTRIBUTION,
    family="model",
    claim="τ 7.15 beside 5.69 of one EAGLE-3 head for everything, Llama 3.1 8B over seven domains.",
    differs=(
        "Here τ is {arms.not_a_bandit.tau} on a stream of five subjects, {arms.bandit_ucb.tau} for UCB, {arms.bandit_exp3.tau} "
        "for EXP3, {arms.single.tau} for the best arm alone (T = 0; at T = 1 {arms.not_a_bandit.tau_warm}, "
        "{arms.bandit_ucb.tau_warm}, {arms.bandit_exp3.tau_warm} and {arms.single.tau_warm}): arms are small changes to one "
        "small model, and the better that is, the less it matters which."
    ),
    paper=Paper("Not-a-Bandit: Provably No-Regret Drafter Selection in Speculative Decoding for LLMs", "Liu et al.", 2025,
                "2510.20064"),
    look_at="The river of weights, and the ghosts: what the arms that did not draft would have got right.",
    parameters=Parameters,
    weights=("small_draft", "arms"),
    pair="`python -m specviz run --method not_a_bandit --target smollm2-1.7b-instruct --draft "
    'smollm2-135m-hub,smollm2-360m-instruct --prompt "Why?"`: any language models with the '
    "target's tokenizer, with commas between them; copying is the last arm. The paper's arms are "
    "EAGLE-3 heads, which cannot be: what such a head says at a place depends on the chain it "
    "stands in",
)  # fmt: skip
def compose(parameters: Parameters, resources: TextResources) -> Composition:
    from specviz.errors import BadInput
    from specviz.methods.hedgespec.online_learners import Fixed, NormalHedge

    names = arm_names(resources)
    if parameters.arm != "all":
        if parameters.arm not in names:
            raise BadInput(f"There is no arm {parameters.arm} among the drafters named: choose all or copy, or name one drafter.")
        return choosing(resources, Fixed(len(names), names.index(parameters.arm)), parameters.gamma, parameters.loss)
    chooser = recalled(resources, "hedge", parameters.loss, parameters.remember, lambda: NormalHedge(len(names)))
    chooser.keep, chooser.debt = parameters.keep, parameters.debt
    return choosing(resources, chooser, parameters.gamma, parameters.loss)


def arm_names(resources: TextResources) -> tuple[str, ...]:
    """Return the shipped arms, or the draft models that the user named and copying."""
    return ARMS if resources.uses_shipped_weights else (*resources.draft_models(), COPY)


Learner = TypeVar("Learner")


def recalled(resources: TextResources, kind: str, loss: str, remember: bool, make: Callable[[], Learner]) -> Learner:
    """Return the chooser from this user's last run over the same arms, or a new one."""
    return resources.remember((kind, resources.target.name, loss, *arm_names(resources)), make) if remember else make()


def choosing(resources: TextResources, chooser: Chooser, gamma: int, loss: str = "length") -> Composition:
    """Compose all arms with ``chooser``, which selects one in each round."""
    from specviz.acceptance.rejection import Rejection
    from specviz.drafting.runtimes.language_model import SmallModel
    from specviz.drafting.trees.copied import Copied
    from specviz.drafting.trees.sampled import Sampled
    from specviz.engine.interfaces import Composition
    from specviz.engine.tree import chain
    from specviz.methods.hedgespec.evaluable import JudgedCopy, JudgedModel
    from specviz.methods.hedgespec.selection import Arm, DrafterSelector

    def opened(name: str) -> Callable[[int], SmallModel]:
        return lambda capacity: SmallModel(shipped[name], capacity)

    drafters: dict[str, JudgedModel] = {}
    warnings: list[str] = []
    if resources.uses_shipped_weights:
        shipped = resources.drafter_weights("arms")
        drafters = {name: JudgedModel(opened(name), resources.target.context_length, gamma) for name in DOMAINS}
    else:
        for name, model in resources.draft_models().items():
            drafters[name] = JudgedModel(model.open, model.context_length, gamma)
            warnings += model.warnings
    arms: list[Arm[Any]] = [Arm(name, drafter, Sampled(chain(gamma))) for name, drafter in drafters.items()]
    arms.append(Arm(COPY, JudgedCopy(3, 1, gamma), Copied()))
    draft_name = "arms" if resources.uses_shipped_weights else ", ".join(drafters)
    return Composition(
        DrafterSelector(arms, chooser, gamma, loss), Rejection(), draft_name=draft_name, warnings=tuple(dict.fromkeys(warnings))
    )
