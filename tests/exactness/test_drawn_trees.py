"""Fixed trees drawn from a trained kind of network: the distributions that it was drawn from, and that of whole runs."""

from functools import partial

import pytest
import torch

from specviz.acceptance.exact import Rejection
from specviz.drafting.networks.eagle_head import EagleHead
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Composition, SingleDrafter
from specviz.engine.sampling import Warp
from specviz.engine.tree import shape_from_counts
from specviz.targets.text import TextTarget
from tests.support import rounds
from tests.support.tiny.text import tiny_target
from tests.support.worlds.feature import tiny_net
from tests.support.worlds.three_tokens import PROMPT, VOCAB, World, keeps_distribution, spoken

# The upper left of the published tree, as much of it as three tokens can fill.
SHAPE = shape_from_counts([[3], [2, 1]])
WARPS = {"plain": Warp(1.0), "cool": Warp(0.6), "nucleus": Warp(1.4, top_p=0.95)}


def network_for(target: TextTarget, kind: str) -> EagleHead:
    """An untrained network that is in doubt: distributions of nearly 0 and 1 would cost the sums below their digits."""
    network = tiny_net(target.model, kind == "wide")
    network.head = network.head * (0.5 if kind == "wide" else 0.05)
    return network


context = partial(rounds.context, PROMPT, seed=3, story=False)


def drafter_on(target: TextTarget, kind: str, warp: Warp) -> FeatureDrafter:
    """A drafter that has read the prompt."""
    network = network_for(target, kind)
    drafter = FeatureDrafter(network.runtime(), target.context_length)
    session = target.open(len(PROMPT) + 50, network.config.taps)
    drafter.begin(context(warp=warp), session.prefill(PROMPT[:-1]))
    return drafter


@torch.inference_mode()
def world_of(target: TextTarget, kind: str, warp: Warp) -> World:
    """The target's and the network's own distributions after every text of up to two tokens."""
    world = spoken(target)
    world.warp = warp
    levels = drafter_on(target, kind, warp).levels(context(warp=warp))
    assert levels is not None
    first, second = levels.ask(), levels.ask(torch.arange(VOCAB), torch.zeros(VOCAB, dtype=torch.long))
    world.drafter = (first[0], second, torch.zeros(VOCAB, VOCAB, VOCAB, dtype=torch.float64))
    return world


@pytest.mark.parametrize("warp", list(WARPS))
@pytest.mark.parametrize("kind", ["narrow", "wide"])
def test_the_distributions_kept_with_a_tree_are_the_ones_its_children_were_drawn_from(kind, warp):
    target = tiny_target(vocab=VOCAB)
    world = world_of(target, kind, WARPS[warp])
    draft = Sampled(SHAPE).build(drafter_on(target, kind, WARPS[warp]), context(warp=WARPS[warp]))
    for node, distribution in draft.proposals.items():
        prefix = [draft.tree.host_tokens[one] for one in draft.tree.shape.path(node)[1:]]
        assert torch.allclose(distribution.probability, world.proposal(prefix).probability, atol=1e-12)


@pytest.mark.slow
def test_whole_runs_keep_the_distribution_too():
    target = tiny_target(vocab=VOCAB)
    runtime = network_for(target, "narrow").runtime()

    def composed():
        drafter = FeatureDrafter(runtime, target.context_length)
        return Composition(SingleDrafter(drafter, Sampled(SHAPE)), Rejection(), runtime.config.taps)

    assert keeps_distribution(target, composed, 500)
