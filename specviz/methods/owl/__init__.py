"""OWL (Lee et al. 2510.07535): a recurrent drafter that reads only the last token's state, so text length does not matter.

HOWL, from the same paper, drafts from suffix trees where the text repeats itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from specviz.methods.eagle2 import TreeSize, limited_tree
from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, choice, number, parts, switch
from specviz.methods.suffix_decoding import REMEMBERED, output_store


@dataclass(frozen=True)
class Parameters(TreeSize):
    """For an 8B target, the paper uses depth 8, width 10 and 60 nodes, half of which are [SPEC] tokens."""

    depth: int = number(4, 1, 12, "Depth of the tree; each level takes one drafter pass. The paper uses 8.", "levels")
    nodes: int = number(0, 0, 128, "Nodes to verify; 0 chooses the fastest number in every round; the paper uses 30.", "nodes")
    probe: bool = switch(True, "Add a [SPEC] token after every token and draft from both hidden states; doubles the rows.")


@Card(name="owl", exactness=TOKEN_EXACT, family="features", parameters=Parameters, weights=("owl",))
def owl(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    return _composed(parameters, resources)


@dataclass(frozen=True)
class HybridParameters(Parameters):
    """Parameters of OWL, and of the choice between suffix trees and network. The paper's threshold was not available.

    By default the threshold adapts to the acceptance of both sources so far in the run.
    """

    bar: str = choice(
        "weighed", ("weighed", "fixed"), "Adapt the threshold to the acceptance in this run, or use the fixed threshold below."
    )
    threshold: float = number(
        1.5,
        0.0,
        16.0,
        "Fixed threshold: minimum number of expected accepted tokens for the suffix trees to draft instead of the network.",
        "tokens",
        step=0.5,
    )
    most: int = number(32, 1, 64, "Maximum number of draft tokens from suffix trees.", "tokens")
    remembered: int = REMEMBERED


@Card(name="howl", exactness=TOKEN_EXACT, family="features", parameters=HybridParameters, weights=("owl",))
def howl(parameters: HybridParameters, resources: MethodResources) -> parts.Composition:
    # Every draft scores more than 0, so a threshold of 0 lets all drafts pass.
    threshold = None if parameters.bar == "weighed" else parameters.threshold
    store = output_store(resources, parameters.remembered)
    return _composed(
        parameters, resources, parts.Retrieval(store, parts.LengthRule(parameters.most), threshold or 0.0), threshold
    )


def _composed(
    parameters: Parameters,
    resources: MethodResources,
    memory: parts.Retrieval | None = None,
    threshold: float | None = None,
) -> parts.Composition:
    from specviz.methods.owl.drafting import HybridController, RecurrentDrafter, SpecToken

    network = resources.drafter_weights("owl")
    builder = limited_tree(parameters, resources, 2 if parameters.probe else 1)
    controller = HybridController(RecurrentDrafter(network), builder, memory, threshold, parameters.probe)
    opener = SpecToken(network.probe.detach()) if parameters.probe else None
    return parts.Composition(controller, parts.Match(), (network.config.tap,), draft_name="owl", opener=opener)
