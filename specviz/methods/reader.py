"""READER (2508.09072): branches looked up in this text and in earlier outputs, grafted on a drafter's tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.parameters import choice, number
from specviz.methods.registry import Paper, method

if TYPE_CHECKING:
    from specviz.engine.controller import Steady
    from specviz.engine.interfaces import Composition
    from specviz.methods.parts import Parts


@dataclass(frozen=True)
class Parameters:
    """The paper does not state its budgets; these are ours."""

    drafter: str = choice(
        "recycling",
        ("none", "recycling", "small_draft", "eagle3"),
        "What the branches are grafted on: nothing, last seen successors, the small draft model, or EAGLE-3.",
    )
    nodes: int = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay in each round on this machine.", "nodes")
    retrieved: int = number(48, 1, 64, "Most nodes a memory adds in one place.", "nodes")
    deepened: int = number(4, 0, 16, "Likeliest leaves of the drafter's tree that are looked up as well.", "leaves")
    remembered: int = number(64, 0, 512, "Your earlier outputs that are searched as well, 0 for none.", "outputs")


@method(
    name="reader",
    title="READER",
    summary="Grafts long branches found in the text and in earlier outputs on a short bushy draft, and keeps what pays.",
    modality=("text",),
    exactness="exact",
    token_exact=True,
    family="memory",
    claim="40 % over the drafter it is grafted on, and over 10× where answers quote documents.",
    paper=Paper(
        "READER: Retrieval-Assisted Drafter for Efficient LLM Inference", "Divilkovskiy et al.", 2025, "2508.09072"
    ),
    look_at="Two colours in one tree: the drafter's nodes are short and bushy, retrieved ones long and thin.",
    parameters=Parameters,
)
def compose(parameters: Parameters, parts: Parts) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.drafters.output_store import OutputStore
    from specviz.drafters.retrieval import Retrieval
    from specviz.drafters.suffix_guess import LengthRule
    from specviz.engine.interfaces import Composition
    from specviz.growth.dynamic import Paying
    from specviz.growth.estimates import Estimates
    from specviz.growth.merged import Merged

    store = None
    if parameters.remembered:
        store = parts.recall(("target_outputs", parts.target.name), OutputStore)
        store.most_outputs = parameters.remembered
    # Wider than the length rule's own: what does not pay is cut when the tree is whole.
    rule = LengthRule(parameters.retrieved, factor=6.0, offset=1.0, floor=0.05)
    estimates = parts.recall(("estimates", parts.target.name, parameters.drafter), Estimates)
    pays = None if parameters.nodes else Paying.on(parts.cost_curve(), parts.target.tier)
    base = _base(parameters.drafter, parts)
    memories = Retrieval(store, rule)
    controller = Merged(base.controller, memories, estimates, parameters.nodes, parameters.deepened, pays)
    return Composition(controller, Match(), base.taps, base.name, base.warnings)


@dataclass(frozen=True)
class Base:
    """The drafter that branches are grafted on, and what it needs of the target."""

    controller: Steady | None = None
    name: str = ""
    taps: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()


def _base(name: str, parts: Parts) -> Base:
    made = {"none": lambda parts: Base(), "recycling": _recycling, "small_draft": _small_draft, "eagle3": _eagle3}
    return made[name](parts)


def _recycling(parts: Parts) -> Base:
    from specviz.drafters.successors import Recycler, SuccessorMatrix
    from specviz.engine.controller import Steady
    from specviz.growth.calibrated import CalibratedTree
    from specviz.growth.static import Static

    matrix = parts.recall(("successors", parts.target.name), lambda: SuccessorMatrix(parts.target.vocab_size))
    tree = CalibratedTree.load(parts.tree_file("token_recycling"))
    return Base(Steady(Recycler(matrix), Static(tree.best(DRAFTED))))


def _small_draft(parts: Parts) -> Base:
    from specviz.drafters.language_model import LanguageModelDrafter
    from specviz.engine.controller import Steady
    from specviz.growth.ladder import Ladder

    draft = parts.draft_model()
    drafter = LanguageModelDrafter(draft.open, draft.context_length)
    return Base(Steady(drafter, Ladder(4, 3)), draft.name, warnings=draft.warnings)


def _eagle3(parts: Parts) -> Base:
    from specviz.drafters.feature_drafter import FeatureDrafter
    from specviz.engine.controller import Steady
    from specviz.growth.dynamic import Dynamic

    network = parts.heads("eagle3")
    return Base(Steady(FeatureDrafter(network), Dynamic(4, 6, DRAFTED)), "eagle3", network.config.taps)


DRAFTED = 48
"""Nodes a drafter offers before the merged tree is cut to what pays."""
