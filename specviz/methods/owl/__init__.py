"""OWL (Lee et al. 2510.07535): a recurrence that drafts from the last token's state, independent of text length.

HOWL, of the same paper, drafts from suffix trees where the text repeats itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.dynamic_tree import TreeSize, limited_tree
from specviz.methods.registry import TOKEN_EXACT, Card, choice, number, parts, switch
from specviz.methods.suffix_decoding import REMEMBERED, output_store


@dataclass(frozen=True)
class Parameters(TreeSize):
    """The paper's values for an 8B target are depth 8, width 10 and 60 nodes, half of them with probes."""

    depth: int = number(4, 1, 12, "Depth of the tree; each level takes one drafter pass. The paper's value is 8.", "levels")
    nodes: int = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay off in each round, the paper's value is 30.", "nodes")
    probe: bool = switch(True, "Score a [SPEC] token after every token, whose state the drafter reads too; doubles the rows.")


@Card(name="owl", exactness=TOKEN_EXACT, family="features", parameters=Parameters, weights=("owl",))
def owl(parameters: Parameters, resources: parts.MethodResources) -> parts.Composition:
    return _composed(parameters, resources)


@dataclass(frozen=True)
class HybridParameters(Parameters):
    """The paper's threshold was not available to us. By default it adapts: the score above which, judging by acceptance so far in
    this run, the suffix trees are expected to yield more than the network's tree."""

    bar: str = choice(
        "weighed", ("weighed", "fixed"), "Adapt the threshold to how trees and network performed in this run, or fix it below."
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


@Card(name="howl", exactness=TOKEN_EXACT, family="features", parameters=HybridParameters, weights=("owl",))
def howl(parameters: HybridParameters, resources: parts.MethodResources) -> parts.Composition:
    # An empty draft has score 0, so a threshold of 0 accepts every non-empty proposal.
    threshold = None if parameters.bar == "weighed" else parameters.threshold
    store = output_store(resources, parameters.remembered)
    return _composed(
        parameters, resources, parts.Retrieval(store, parts.LengthRule(parameters.most), threshold or 0.0), threshold
    )


def _composed(
    parameters: Parameters,
    resources: parts.MethodResources,
    memory: parts.Retrieval | None = None,
    threshold: float | None = None,
) -> parts.Composition:
    from specviz.methods.owl.drafting import HybridController, RecurrentDrafter, SpecToken

    network = resources.drafter_weights("owl")
    builder = limited_tree(parameters, resources, 2 if parameters.probe else 1)
    controller = HybridController(RecurrentDrafter(network), builder, memory, threshold, parameters.probe)
    opener = SpecToken(network.probe.detach()) if parameters.probe else None
    return parts.Composition(controller, parts.Match(), (network.config.tap,), draft_name="owl", opener=opener)
