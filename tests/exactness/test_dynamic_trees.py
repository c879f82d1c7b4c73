"""The ladder for trees that follow confidence: whatever the drafter foresees, the text is the target's own."""

from __future__ import annotations

import pytest

from specviz.acceptance.rejection import Rejection
from specviz.drafting.trees.dynamic import Dynamic
from specviz.engine.interfaces import Draft
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import shape_from_counts
from tests.support.worlds.three_tokens import World, context, drawn, exact_distribution, rebuilt, share

# The distribution, by enumeration: a tree of this kind is certain, and only as such may it be judged.


def ranked(world: World, nodes: int) -> Draft:
    return Dynamic(2, 3, nodes).build(world, context(Noise(0), world.warp))


def strays(world: World, drafts: list[tuple[float, Draft]], monkeypatch: pytest.MonkeyPatch) -> float:
    """Total variation between the distribution of three tokens under rejection and the target's own."""
    return float((exact_distribution(world, iter(drafts), Rejection(), monkeypatch) - world.distribution()).abs().sum()) / 2


@pytest.mark.parametrize("nodes", [1, 3, 6, 9])
@pytest.mark.parametrize("warp", [Warp(1.0), Warp(0.7), Warp(1.3, 3, 0.9)])
def test_rejecting_its_nodes_as_point_masses_keeps_the_distribution(
    nodes: int, warp: Warp, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(4, 2, warp)
    assert strays(world, [(1.0, ranked(world, nodes))], monkeypatch) < 1e-12


def test_noticed_its_nodes_judged_by_the_drafters_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3, 1)
    draft = ranked(world, 6)
    prefixes = {0: ()} | {node: (draft.tree.host_tokens[node],) for node in draft.tree.shape.children[0]}
    distributions = {node: world.proposal(prefix) for node, prefix in prefixes.items() if draft.tree.shape.children[node]}
    posing = Draft(draft.tree, distributions)
    assert strays(world, [(1.0, posing)], monkeypatch) > 0.05


def test_noticed_drawn_nodes_reranked_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expand by drawing, then keep the best by value: the reranking looks at what was drawn, so the draws are no draws."""
    world, shape = World(3, 1), shape_from_counts([[2], [2, 2]])

    def reranked(draft: Draft) -> Draft:
        value = [1.0]
        for node, parent in enumerate(draft.tree.shape.parents[1:], start=1):
            value.append(value[parent] * share(draft, parent, node))
        kept = set(sorted(range(1, len(value)), key=lambda node: (-value[node], node))[:3])
        return rebuilt(draft, lambda old, node: [child for child in old.tree.shape.children[node] if child in kept])

    drafts = [(probability, reranked(draft)) for probability, draft in drawn(world, shape)]
    assert strays(world, drafts, monkeypatch) > 0.03
    assert strays(world, list(drawn(world, shape)), monkeypatch) < 1e-12
