"""HOWL (Lee et al. 2510.07535): OWL's tree, or a suffix-tree draft where the text repeats itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.owl import method as owl
from specviz.methods.parameters import choice, number
from specviz.methods.registry import TOKEN_EXACT, Card
from specviz.methods.suffix_decoding import REMEMBERED, output_store

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import MethodResources


@dataclass(frozen=True)
class Parameters(owl.Parameters):
    """The paper's threshold was not available to us. By default it adapts: the score above which, judging by acceptance so far in
    this run, the suffix trees are expected to yield more than the network's tree."""

    bar: str = choice(
        "weighed", ("weighed", "fixed"), "Adapt the threshold to how trees and network have done in this run, or fix it below."
    )
    threshold: float = number(
        1.5,
        0.0,
        16.0,
        "Fixed threshold: the suffix trees draft instead of the network if they expect at least this many tokens to be accepted.",
        "tokens",
        step=0.5,
    )
    most: int = number(32, 1, 64, "Maximum tokens drafted from memory, however long the match.", "tokens")
    remembered: int = REMEMBERED


@Card(
    name="howl",
    title="HOWL",
    summary="Suffix trees draft where the text repeats itself, OWL's recurrence everywhere else, chosen by score.",
    exactness=TOKEN_EXACT,
    family="features",
    claim="τ 6.14 and over 3× on texts of 4K to 64K tokens with Llama 3.1 8B.",
    differs=(
        "Copying from a diary that repeats itself, τ is {length.howl_copying.t_1024} at 1024 tokens, where the recurrence alone "
        "has {length.owl_copying.t_1024} and the memories {length.suffix_decoding_copying.t_1024}, and "
        "{length.howl_copying.t_4096} at 4096 ({length.owl_copying.t_4096} and {length.suffix_decoding_copying.t_4096})."
    ),
    paper=owl.PAPER,
    look_at="The badge in the panel τ by text length: a step is a long copy or a short tree from the network, never both.",
    parameters=Parameters,
    weights=("owl",),
)
def compose(parameters: Parameters, resources: MethodResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.drafting.memory.retrieval import Retrieval
    from specviz.drafting.memory.suffix_guess import LengthRule
    from specviz.drafting.trees.retrieved import Retrieved
    from specviz.engine.interfaces import Composition
    from specviz.methods.howl.hybrid import HybridController

    # An empty draft has score 0, so a threshold of 0 accepts every non-empty proposal.
    threshold = None if parameters.bar == "weighed" else parameters.threshold
    memory = Retrieval(output_store(resources, parameters.remembered), LengthRule(parameters.most), threshold or 0.0)
    network, inner = owl.drafting(parameters, resources)
    controller = HybridController(inner.network, inner.builder, memory, Retrieved(), threshold, parameters.probe)
    opener = owl.opener(parameters, network)
    return Composition(controller, Match(), (network.config.tap,), draft_name="owl", opener=opener)
