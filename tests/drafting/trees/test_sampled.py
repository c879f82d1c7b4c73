"""Trees of drawn children: drawn without replacement by their distribution, anew in each round, never past the context's end."""

import itertools
from collections import Counter
from functools import partial

import pytest
import torch

from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Proposal
from specviz.engine.sampling import Warp
from specviz.engine.tree import chain, shape_from_counts
from specviz.trace.schema import Note
from tests.support import rounds

LAW = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)


class Told:
    """Gives one distribution everywhere, over listed tokens or over a whole vocabulary."""

    def __init__(self, distribution, ids=None, silent_after=None):
        self._proposal = Proposal(distribution, None if ids is None else torch.tensor(ids))
        self._silent_after = silent_after
        self.picks = []

    def rows(self, context, tokens, parents, nodes):
        return [None if tokens[node] == self._silent_after else self._proposal for node in nodes]

    def calls(self):
        return 3

    def draft_notes(self, picks):
        self.picks = list(picks)
        return (Note("told", {}),)


context = partial(rounds.context, [8, 9], warp=Warp(1.0), story=False)


ROUNDS = 2000
WIDE = torch.zeros(40, dtype=torch.float64)  # past the width where every node has noise of its own
WIDE[[7, 11, 30, 2]] = LAW


@pytest.mark.spread(1)
@pytest.mark.parametrize("told", [Told(LAW), Told(LAW, [7, 11, 30, 2]), Told(WIDE)], ids=["short", "listed", "wide"])
def test_siblings_are_drawn_without_replacement_by_their_distribution(told):
    builder, found = Sampled(shape_from_counts([[2]])), Counter()
    for number in range(ROUNDS):
        found[builder.build(told, context(number)).tree.host_tokens[1:]] += 1
    ids = sorted({token for pair in found for token in pair})
    names = {7: 0, 11: 1, 30: 2, 2: 3} if 30 in ids else {token: token for token in range(4)}
    square = 0.0
    for first, second in itertools.permutations(names, 2):
        p, q = float(LAW[names[first]]), float(LAW[names[second]])
        expected = ROUNDS * p * q / (1 - p)
        square += (found[first, second] - expected) ** 2 / expected
    assert square < 48.0  # 11 degrees of freedom, one in a million
    assert all(first != second for first, second in found)


@pytest.mark.slow
def test_two_nodes_of_one_round_draw_independently():
    builder, found = Sampled(shape_from_counts([[1], [1]])), Counter()
    for number in range(ROUNDS):
        found[builder.build(Told(LAW), context(number)).tree.host_tokens[1:]] += 1
    expected = {pair: ROUNDS * float(LAW[pair[0]] * LAW[pair[1]]) for pair in itertools.product(range(4), repeat=2)}
    assert sum((found[pair] - count) ** 2 / count for pair, count in expected.items()) < 56.5  # 15 degrees


def test_a_round_can_be_drawn_again_and_the_next_one_differs():
    builder = Sampled(shape_from_counts([[2], [2, 1]]))
    first, again, following = (builder.build(Told(LAW), context(number)).tree.host_tokens for number in (3, 3, 4))
    assert first == again != following
    assert builder.build(Told(LAW), context(3, seed=1)).tree.host_tokens != first


def test_distributions_are_kept_as_drawn_from_and_children_in_draw_order():
    told = Told(LAW, [7, 11, 30, 2])
    draft = Sampled(shape_from_counts([[3], [1]])).build(told, context(1, story=True))
    assert set(draft.proposals) == {0, 1}
    pick = told.picks[0]
    assert pick.order.tolist() == pick.perturbed.topk(3).indices.tolist()
    ids = draft.proposals[0].ids
    assert list(draft.tree.host_tokens[1:4]) == ids[pick.order].tolist()
    named = dict(zip([7, 11, 30, 2], LAW.tolist(), strict=True))
    assert draft.confidence[1:4] == [named[token] for token in draft.tree.host_tokens[1:4]]
    assert (draft.calls, draft.notes[0].type) == (3, "told")


def test_at_temperature_zero_the_best_are_taken_as_certain():
    draft = Sampled(shape_from_counts([[2], [1]])).build(Told(LAW), context(warp=Warp()))
    assert draft.tree.host_tokens == (9, 0, 1, 0)
    assert not draft.proposals


def test_no_more_children_than_tokens_with_mass():
    distribution = torch.tensor([0.0, 0.6, 0.0, 0.4], dtype=torch.float64)
    for number in range(50):
        draft = Sampled(shape_from_counts([[4], [2, 2]])).build(Told(distribution), context(number))
        assert [len(row) for row in draft.tree.shape.children] == [2, 2, 2, 0, 0, 0, 0]
        assert set(draft.tree.host_tokens[1:]) == {1, 3}


def test_where_the_drafter_knows_nothing_the_branch_ends():
    sure = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert len(Sampled(chain(5)).build(Told(sure, [0, 4], silent_after=4), context()).tree) == 2


@pytest.mark.parametrize(("room", "depth"), [(1, 0), (2, 1), (4, 3), (50, 6)])
def test_a_tree_leaves_the_contexts_last_place_to_the_bonus_token(room, depth):
    draft = Sampled(chain(6)).build(Told(LAW), context(room=room))
    assert max(draft.tree.shape.depths) == depth
