"""A model that drafts for itself with its own MTP layer: chains and trees equal the target alone, and nothing is left behind."""

from typing import Any

import pytest

from specviz.drafting.networks.eagle_head import EagleRuntime
from specviz.models.heads.published import read
from specviz.models.hub.published import open_repository
from specviz.targets.hybrid import HybridTarget, causal_target
from tests.support.tiny.mtp import KINDS, made, stored
from tests.support.tiny.text import LENGTH, composed, decode, parts_for
from tests.support.worlds.hybrid import GREEDY, PROMPT, WARM, Audited

CHAIN: dict[str, Any] = {"depth": 3, "width": 1, "nodes": 3, "rule": "match"}
TREE: dict[str, Any] = {"depth": 3, "width": 6, "nodes": 24, "rule": "match"}


class World:
    """A target of one kind and its own MTP layer laid out."""

    def __init__(self, kind, folder):
        one, self.kind = made(kind), kind
        self.target = causal_target(one.model, "tiny", ())
        self.network = EagleRuntime(read("eagle", open_repository(str(stored(folder, one))), one.fit))

    def compose(self, name, values, warp):
        parts = parts_for(self.target, warp).using(drafter_weights=lambda kind: self.network)
        return composed(name, values, parts)

    def run(self, name, values, warp, budget):
        return decode(self.target, self.compose(name, values, warp), PROMPT, budget, warp, 7)


QUICK = ("qwen3_5", "glm4_moe")


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS], ids=KINDS
)
def world(request, tmp_path_factory):
    return World(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.spread(1)
def test_chains_and_trees_equal_the_target_alone(world):
    warp, length = (WARM, min(LENGTH, 110)) if world.kind in QUICK else (GREEDY, 60)
    alone = world.run("autoregressive", {}, warp, length)
    chain, tree = (world.run("eagle2", values, warp, length) for values in (CHAIN, TREE))
    assert chain.ids == alone.ids and tree.ids == alone.ids and len(tree.ids) == length
    assert all([node.parent for node in step.nodes] == list(range(-1, len(step.nodes) - 1)) for step in chain.steps)
    assert sum(len(step.path) for step in tree.steps) > length // 50
    assert world.run("eagle", {"rule": "match"}, warp, 60).ids == alone.ids[:60], "the fixed tree"


def test_cache_window_and_state_equal_a_fresh_prefill_after_every_step(world, monkeypatch):
    if not isinstance(world.target, HybridTarget):
        pytest.skip("a target whose layers all attend is audited by the ladder")
    monkeypatch.setattr(world.target, "open", lambda capacity, taps=(): Audited(world.target, capacity, taps))
    Audited.checked, Audited.worst = 0, 0.0
    kept = world.run("eagle2", TREE, WARM, 60)
    assert Audited.checked >= len(kept.steps) and Audited.worst < 1e-10


@pytest.mark.spread(1)
def test_drawn_tokens_have_their_own_probability(world):
    """At temperature 1 and more the drafter is drawn from, and the ratio test needs what it was drawn with."""
    kept = world.run("eagle2", {"depth": 2, "width": 4, "nodes": 0}, WARM, 40)
    drawn = [node for step in kept.steps for node in step.nodes[1:]]
    assert drawn and all(node.q is not None and 0 < node.q <= 1 for node in drawn)
