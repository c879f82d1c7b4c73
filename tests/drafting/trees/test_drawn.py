"""Dynamic trees of drawn tokens: as large as was asked or as pays, deep where the drafter is sure, drawn anew in each round."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from specviz.drafting.trees.drawn import MOST, Drawn, gain_of, gains
from specviz.drafting.trees.dynamic import SpeedupMaximising
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Context, Proposal
from specviz.engine.sampling import Noise, Warp
from tests.support.worlds.fancy import Fancy, path_to, paths


class Drafter(Fancy):
    """One that is asked for distributions."""

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        logits = self.logits(context, tokens, parents, nodes)
        if logits is None:
            return [None] * len(nodes)
        return [Proposal(row.softmax(-1), self.support) for row in logits]


def context(number: int = 0, room: int = 100) -> Context:
    return Context([5, 1], 2, number, Warp(1.0), Noise(0), torch.device("cpu"), room, True)


def paying(node: float, forward: float) -> Drawn:
    """Where a node more costs so much of a pass, and a forward so much."""
    return Drawn(6, 4, 0, SpeedupMaximising.on(CostCurve((1, 101), (1.0, 1.0 + 100 * node)), forward=forward))


@given(seed=some.integers(0, 9999), depth=some.integers(1, 5), width=some.integers(1, 5), nodes=some.integers(1, 30))
def test_no_more_nodes_than_asked_for_no_twins_and_a_distribution_with_every_parent(
    seed: int, depth: int, width: int, nodes: int
) -> None:
    draft = Drawn(depth, width, nodes).build(Drafter(seed), context())
    found = paths(draft)
    assert len(set(found)) == len(found) <= nodes + 1
    assert max(map(len, found)) <= depth and draft.tree.shape.parents[0] == -1
    assert set(draft.proposals) == {node for node, below in enumerate(draft.tree.shape.children) if below}
    assert all(len(below) <= width for below in draft.tree.shape.children)


def test_the_distribution_kept_with_a_node_is_the_one_its_children_were_drawn_from() -> None:
    drafter = Drafter(3)
    draft = Drawn(3, 3, 12).build(drafter, context())
    for node, proposal in draft.proposals.items():
        path = path_to(draft.tree.host_tokens, draft.tree.shape.parents, node)
        assert torch.equal(proposal.probability, drafter.distribution(path).softmax(-1))


def test_a_sure_drafter_gets_a_chain_and_a_doubtful_one_a_bush() -> None:
    sure, doubtful = (Drawn(5, 4, 5).build(Drafter(1, temperature), context()).tree.shape for temperature in (40.0, 0.1))
    assert max(sure.depths) == 5 and max(map(len, sure.children)) == 1
    assert max(doubtful.depths) < 5 and len(doubtful.children[0]) > 1


def test_dear_nodes_make_small_trees_and_dear_forwards_shallow_ones() -> None:
    cheap, dear_nodes, dear_forwards = (
        paying(*costs).build(Drafter(2), context()) for costs in ((0.001, 0.01), (0.2, 0.01), (0.001, 0.4))
    )
    assert len(cheap.tree) > len(dear_nodes.tree)
    assert max(cheap.tree.shape.depths) > max(dear_forwards.tree.shape.depths) and cheap.calls > dear_forwards.calls
    assert len(cheap.tree) <= 1 + MOST


def test_a_round_can_be_drawn_again_and_the_next_one_differs() -> None:
    trees = [Drawn(3, 3, 9).build(Drafter(4), context(number)).tree for number in (0, 0, 1)]
    assert trees[0].host_tokens == trees[1].host_tokens != trees[2].host_tokens


def test_a_drafter_that_cannot_go_on_ends_the_tree_there() -> None:
    assert len(Drawn(4, 2, 8).build(Drafter(most=0), context()).tree) == 1
    assert max(Drawn(4, 2, 8).build(Drafter(most=1), context()).tree.shape.depths) == 1


def test_never_past_the_end_of_the_context() -> None:
    draft = Drawn(5, 2, 10).build(Drafter(), context(room=3))
    assert max(draft.tree.shape.depths) == 2


@pytest.mark.parametrize("likeliest", [0.0, 0.3, 0.7, 1.0])
def test_later_children_are_worth_less_and_all_together_no_more_than_one(likeliest: float) -> None:
    shares = gains(likeliest, 12)
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1
    assert 0 < gain_of(likeliest) <= 1 and gain_of(1.0) > gain_of(0.1)
