"""Dynamic trees of drawn tokens: the distribution by enumeration of all that may be drawn, level after level."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from specviz.acceptance.exact import Rejection
from specviz.drafting.trees import sampled_dynamic
from specviz.drafting.trees.dynamic import SpeedupPolicy
from specviz.drafting.trees.sampled_dynamic import SampledDynamicTree
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Draft
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree
from tests.support.worlds.three_tokens import World, context, exact_distribution

Chances = list[tuple[float, tuple[int, ...]]]


def orders(q: torch.Tensor, count: int) -> Chances:
    """Every order in which ``count`` tokens may be drawn without replacement, and how likely it is."""
    found = []
    for order in itertools.permutations(range(len(q)), count):
        probability, left = 1.0, 1.0
        for token in order:
            probability *= float(q[token]) / left if left > 0 else 0.0
            left -= float(q[token])
        if probability > 0:
            found.append((probability, order))
    return found


def every_draft(world: World, builder: SampledDynamicTree, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[float, Draft]]:
    """All trees that the builder may draw, by the probability of drawing them."""
    waiting: list[list[int]] = [[]]
    while waiting:
        script = waiting.pop()
        chances: list[float] = []

        def told(q, key, nodes, most, places):
            rows = []
            for row in q:
                size = min(most, int((row > 0).sum()))
                found, at = orders(row, size), len(chances)
                if at == len(script):
                    waiting.extend([*script, other] for other in range(1, len(found)))
                    script.append(0)
                probability, order = found[script[at]]
                chances.append(probability)
                # What has no probability comes last, as minus infinity does.
                rows.append([*order, *(place for place in range(len(row)) if place not in order)][: min(most, len(row))])
            return q, torch.tensor(rows), q

        with monkeypatch.context() as patched:
            patched.setattr(sampled_dynamic, "_perturb", told)
            draft = builder.build(world, context(Noise(0), world.warp))
        yield float(torch.tensor(chances, dtype=torch.float64).prod()), draft


BUILDERS = {
    "small": SampledDynamicTree(2, 2, 4),
    "wide": SampledDynamicTree(2, 3, 6),
    "paying": SampledDynamicTree(2, 2, SpeedupPolicy.on(CostCurve((1, 8), (10.0, 14.0)))),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("builder", "warp"),
    [
        *((name, Warp(*warp)) for name in ("small", "paying") for warp in ((1.0,), (0.6,), (1.4, 0, 0.95))),
        ("wide", Warp(0.6)),
    ],
)
def test_what_is_drawn_decides_the_next_level_and_not_the_distribution(builder, warp, monkeypatch):
    world = World(3, 5, warp)
    drafts = list(every_draft(world, BUILDERS[builder], monkeypatch))
    assert sum(probability for probability, _ in drafts) == pytest.approx(1.0)
    if builder != "paying" and warp == Warp(1.0):
        assert len({draft.tree.shape.parents for _, draft in drafts}) > 1, "the shape follows the draws"
    found = exact_distribution(world, iter(drafts), Rejection(), monkeypatch)
    assert float((found - world.distribution()).abs().max()) < 1e-12


def test_noticed_a_child_dropped_for_what_was_drawn(monkeypatch):
    """The second child stays only where it is a likely one: whether it is there depends on its own draw."""
    world = World(3, 1)

    def choosy(draft):
        first, second = draft.tree.shape.children[0]
        kept = (0, first, second) if (draft.confidence[second] or 0.0) > 0.3 else (0, first)
        tokens = [draft.tree.host_tokens[node] for node in kept]
        return Draft(DraftTree.of(tokens, [-1, 0, 0][: len(kept)]), {0: draft.proposals[0]})

    drafts = list(every_draft(world, SampledDynamicTree(1, 2, 2), monkeypatch))
    as_drawn, changed = (
        exact_distribution(world, iter(several), Rejection(), monkeypatch)
        for several in (drafts, [(probability, choosy(draft)) for probability, draft in drafts])
    )
    assert float((as_drawn - world.distribution()).abs().max()) < 1e-12
    assert float((changed - world.distribution()).abs().max()) > 1e-3
