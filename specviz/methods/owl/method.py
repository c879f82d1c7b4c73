"""OWL (Lee et al. 2510.07535): a recurrence that drafts from the last token's state, independent of text length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.dynamic_tree import WIDTH, limited_tree
from specviz.methods.parameters import number, switch
from specviz.methods.registry import TOKEN_EXACT, Card, Paper

if TYPE_CHECKING:
    from specviz.drafting.networks.recurrent_net import RecurrentRuntime
    from specviz.engine.interfaces import Composition
    from specviz.methods.howl.hybrid import HybridController
    from specviz.methods.owl.spec_token import SpecToken
    from specviz.methods.resources import MethodResources

PAPER = Paper(
    "OWL: Overcoming Window Length-Dependence in Speculative Decoding for Long-Context Inputs", "Lee et al.", 2025,
    "2510.07535",
)  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    """The paper's values for an 8B target are depth 8, width 10 and 60 nodes, half of them with probes."""

    depth: int = number(4, 1, 12, "Depth of the tree; each level takes one drafter pass. The paper's value is 8.", "levels")
    width: int = WIDTH
    nodes: int = number(0, 0, 128, "Nodes kept; 0 keeps as many as pay off in each round, the paper's value is 30.", "nodes")
    probe: bool = switch(True, "A [SPEC] token behind every scored one, whose state the drafter reads too; twice the rows.")


@Card(
    name="owl",
    title="OWL",
    summary="An LSTM reads the target's last state and nothing else, so a long text drafts as well as a short one.",
    exactness=TOKEN_EXACT,
    family="features",
    claim="τ 4.0 on texts of 4K to 64K tokens with Llama 3.1 8B, where EAGLE-3 has 1.28.",
    differs=(
        "Here τ is {acceptance.owl.all} over sixty held-out prompts of six kinds, and {text.owl.greedy} over three. With "
        "weights of less text it was {length.owl.t_64} where text and question are 64 tokens, and {length.owl.t_256}, "
        "{length.owl.t_1024} and {length.owl.t_4096} at 256, 1024 and 4096, over eight questions. EAGLE's heads do not fall "
        "either: they began as SmolLM2's own last layer, whose positions reach further than 4096."
    ),
    paper=PAPER,
    look_at="Accepted tokens against the length of the text stay level: there is no window to run out of.",
    parameters=Parameters,
    weights=("owl",),
    pair="No reader for its LSTM, nor for Arctic's LSTM speculators",
)
def compose(parameters: Parameters, resources: MethodResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.engine.interfaces import Composition

    network, controller = drafting(parameters, resources)
    return Composition(controller, Match(), (network.config.tap,), draft_name="owl", opener=opener(parameters, network))


def opener(parameters: Parameters, network: RecurrentRuntime) -> SpecToken | None:
    """Return the opener of sessions with the network's [SPEC] token, or None without probes."""
    from specviz.methods.owl.spec_token import SpecToken

    return SpecToken(network.probe.detach()) if parameters.probe else None


def drafting(parameters: Parameters, resources: MethodResources) -> tuple[RecurrentRuntime, HybridController]:
    """Return the network, and a controller that drafts with it alone."""
    from specviz.methods.howl.hybrid import HybridController
    from specviz.methods.owl.drafter import RecurrentDrafter

    network = resources.drafter_weights("owl")
    builder = limited_tree(parameters, resources, 2 if parameters.probe else 1)
    return network, HybridController(RecurrentDrafter(network), builder, probed=parameters.probe)
