"""Fixed trees drawn from a trained kind of network: the distributions that it was drawn from, and that of whole runs."""

from __future__ import annotations

import pytest
import torch

from specviz.acceptance.rejection import Rejection
from specviz.drafting.networks.feature_net import FeatureNet
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Composition, Context, SingleDrafter
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import shape_from_counts
from specviz.targets.text import TextTarget
from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.feature import tiny_net
from tests.support.worlds.three_tokens import PROMPT, VOCAB, World, spoken

# The upper left of the published tree, as much of it as three tokens can fill.
SHAPE = shape_from_counts([[3], [2, 1]])
WARPS = {"plain": Warp(1.0), "cool": Warp(0.6), "nucleus": Warp(1.4, top_p=0.95)}


def network_for(target: TextTarget, kind: str) -> FeatureNet:
    """An untrained network that is in doubt: distributions of nearly 0 and 1 would cost the sums below their digits."""
    network = tiny_net(target.model, kind == "wide")
    network.head = network.head * (0.5 if kind == "wide" else 0.05)
    return network


def context(warp: Warp, number: int = 0) -> Context:
    return Context(PROMPT, len(PROMPT), number, warp, Noise(3), torch.device("cpu"), 50, record_notes=False)


def drafter_on(target: TextTarget, kind: str, warp: Warp) -> FeatureDrafter:
    """A drafter that has read the prompt."""
    network = network_for(target, kind)
    drafter = FeatureDrafter(network.runtime(), target.context_length)
    session = target.open(len(PROMPT) + 50, network.config.taps)
    drafter.begin(context(warp), session.prefill(PROMPT[:-1]))
    return drafter


@torch.inference_mode()
def world_of(target: TextTarget, kind: str, warp: Warp) -> World:
    """The target's and the network's own distributions after every text of up to two tokens."""
    world = World(VOCAB, 0, warp)
    world.target = spoken(target)
    levels = drafter_on(target, kind, warp).levels(context(warp))
    assert levels is not None
    first, second = levels.ask(), levels.ask(torch.arange(VOCAB), torch.zeros(VOCAB, dtype=torch.long))
    world.drafter = (first[0], second, torch.zeros(VOCAB, VOCAB, VOCAB, dtype=torch.float64))
    return world


@pytest.mark.parametrize("warp", list(WARPS))
@pytest.mark.parametrize("kind", ["narrow", "wide"])
def test_the_distributions_kept_with_a_tree_are_the_ones_its_children_were_drawn_from(kind: str, warp: str) -> None:
    target = tiny_target(vocab=VOCAB)
    world = world_of(target, kind, WARPS[warp])
    draft = Sampled(SHAPE).build(drafter_on(target, kind, WARPS[warp]), context(WARPS[warp]))
    for node, distribution in draft.proposals.items():
        prefix = [draft.tree.host_tokens[one] for one in draft.tree.shape.path(node)[1:]]
        assert torch.allclose(distribution.probability, world.proposal(prefix).probability, atol=1e-12)


@pytest.mark.slow
def test_whole_runs_keep_the_distribution_too() -> None:
    """Through the loop, features and noise and all: Pearson's statistic over the 27 texts of three tokens."""
    target, warp, runs = tiny_target(vocab=VOCAB), WARPS["plain"], 500
    expected = runs * world_of(target, "narrow", warp).distribution()
    stepper, counts = network_for(target, "narrow").runtime(), torch.zeros_like(expected)
    for seed in range(runs):
        drafter = FeatureDrafter(stepper, target.context_length)
        composition = Composition(SingleDrafter(drafter, Sampled(SHAPE)), Rejection(), stepper.config.taps)
        first, second, third = decode(target, composition, PROMPT, 3, warp, seed, "off").ids
        counts[first, second, third] += 1
    assert float(((counts - expected) ** 2 / expected).sum()) < 76.0  # 26 degrees of freedom, one in a million
