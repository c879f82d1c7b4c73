"""GTO (Hu et al. 2509.22134): EAGLE-3's drafter, fine-tuned on the reward of its trees, with EAGLE-2's dynamic tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.methods.dynamic_tree import NODES, WIDTH, dynamic_tree
from specviz.methods.parameters import number, switch
from specviz.methods.registry import TOKEN_EXACT, Card, Paper

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition
    from specviz.methods.resources import MethodResources


@dataclass(frozen=True)
class Parameters:
    """The paper's values for an 8B target are depth 7, width 10 and 59 nodes (60 with the root)."""

    depth: int = number(
        0, 0, 12,
        "Depth of the tree; each level takes one drafter pass. 0 chooses the fastest depth on this machine, at least 2, if "
        "the drafter was calibrated for this target and width; otherwise 5. The paper's value is 7.",
        "levels",
    )  # fmt: skip
    width: int = WIDTH
    nodes: int = NODES
    compare: bool = switch(
        False,
        "Also draft with the drafter as it was before, and have the target score that tree too. Each round then costs "
        "about two; without recording nothing is compared.",
    )


@Card(
    name="gto",
    title="GTO",
    summary="The drafter was fine-tuned on the reward of whole trees: how far the target may be expected to follow them.",
    exactness=TOKEN_EXACT,
    family="features",
    claim="τ 6.52 instead of EAGLE-3's 6.07, and 3.73× instead of 3.46×, on Llama 3.1 8B.",
    differs=(
        "Here the reward gains nothing: after 155 updates of eight dialogues that its start, EAGLE-3's drafter, had not read, τ "
        "on held-out answers with trees of 24 nodes is {gto.reward.tau}, after as many updates by cross-entropy "
        "{gto.control.tau}, and {gto.start.tau} at the start. The paper trains for 60 000 updates."
    ),
    paper=Paper(
        "Bridging Draft Policy Misalignment: Group Tree Optimization for Speculative Decoding",
        "Hu et al.",
        2026,
        "2509.22134",
        "ICLR",
    ),
    look_at="Switch on compare: the tree before and after training, from the same text, and what the target thinks of each. "
    "Its training brought nothing that could be measured: do not look for a gain.",
    parameters=Parameters,
    weights=("eagle3", "gto"),
    pair="No reader: `--draft` is refused. It changes EAGLE-3's weights and not its network, so heads in EAGLE-3's layout draft "
    "under `eagle3`, without the reward panel; no checkpoint is known to us",
)
def compose(parameters: Parameters, resources: MethodResources) -> Composition:
    from specviz.acceptance.match import Match
    from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
    from specviz.engine.controller import SingleDrafter
    from specviz.engine.interfaces import Composition
    from specviz.methods.gto.expected_length import Rewarded
    from specviz.methods.gto.shadow_drafting import ShadowDrafting

    network = resources.drafter_weights("gto")
    builder = dynamic_tree(parameters, resources, network, "gto", "gto", default_depth=5)
    after, taps = SingleDrafter(FeatureDrafter(network), builder), network.config.taps
    if not parameters.compare:
        return Composition(after, Rewarded(Match()), taps, draft_name="gto")
    both = ShadowDrafting(after, SingleDrafter(FeatureDrafter(resources.drafter_weights("eagle3")), builder), resources.target)
    return Composition(both, Rewarded(Match(), lambda: both.latest), taps, draft_name="gto")
