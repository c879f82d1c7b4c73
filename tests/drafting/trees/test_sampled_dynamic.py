"""Dynamic trees of drawn tokens: as large as was asked or as pays, deep where the drafter is sure, drawn anew in each round."""

import gc
import math
import weakref
from collections import Counter
from functools import partial
from heapq import heapify, heappop, heappush

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from specviz.drafting.trees import sampled_dynamic
from specviz.drafting.trees.dynamic import SpeedupPolicy
from specviz.drafting.trees.sampled_dynamic import MOST, SampledDynamicTree, decay, expected_acceptance, first_acceptance
from specviz.engine.cost import CostCurve
from specviz.engine.sampling import Warp
from tests.support import rounds
from tests.support.worlds.fancy import Fancy, path_to, paths

context = partial(rounds.context, [5, 1], warp=Warp(1.0))


def pays(node, forward):
    """Where a node more costs so much of a pass, and a forward so much."""
    return SpeedupPolicy.on(CostCurve((1, 101), (1.0, 1.0 + 100 * node)), forward=forward)


@given(seed=some.integers(0, 9999), depth=some.integers(1, 5), width=some.integers(1, 5), nodes=some.integers(1, 30))
def test_no_more_nodes_than_asked_for_no_twins_and_a_distribution_with_every_parent(seed, depth, width, nodes):
    draft = SampledDynamicTree(depth, width, nodes).build(Fancy(seed), context())
    found = paths(draft)
    assert len(set(found)) == len(found) <= nodes + 1
    assert max(map(len, found)) <= depth and draft.tree.shape.parents[0] == -1
    assert set(draft.proposals) == {node for node, below in enumerate(draft.tree.shape.children) if below}
    assert all(len(below) <= width for below in draft.tree.shape.children)


def test_the_distribution_kept_with_a_node_is_the_one_its_children_were_drawn_from():
    drafter = Fancy(3)
    draft = SampledDynamicTree(3, 3, 12).build(drafter, context())
    for node, proposal in draft.proposals.items():
        path = path_to(draft.tree.host_tokens, draft.tree.shape.parents, node)
        assert torch.equal(proposal.probability, Warp(1.0).log_probabilities(drafter.distribution(path)).exp())


def test_a_round_can_be_drawn_again_and_the_next_one_differs():
    trees = [SampledDynamicTree(3, 3, 9).build(Fancy(4), context(number)).tree for number in (0, 0, 1)]
    assert trees[0].host_tokens == trees[1].host_tokens != trees[2].host_tokens


def test_a_drafter_that_cannot_go_on_ends_the_tree_there():
    assert len(SampledDynamicTree(4, 2, 8).build(Fancy(most=0), context()).tree) == 1
    assert max(SampledDynamicTree(4, 2, 8).build(Fancy(most=1), context()).tree.shape.depths) == 1


@given(
    seed=some.integers(0, 9999),
    temperature=some.floats(0.1, 8.0),
    support=some.sampled_from([None, [2, 6, 1]]),
    most=some.integers(1, 6),
    sizes=some.tuples(some.integers(1, 5), some.integers(1, 5), some.integers(0, 40)),
    costs=some.sampled_from([(0.001, 0.03), (0.05, 0.001), (0.2, 0.4)]),
    warp=some.sampled_from([Warp(1.0), Warp(0.6), Warp(1.4, top_p=0.9), Warp(1.0, top_k=2)]),
)
def test_rows_that_stand_for_nothing_change_nothing(
    seed, temperature, support, most, sizes, costs,
    warp,
):  # fmt: skip
    """An accelerator asks them, as its levels have one shape, and goes on below a finished tree; a CPU does not."""

    def grown():
        drafter = Fancy(seed, temperature, support, most)
        return SampledDynamicTree(*sizes[:2], sizes[2] or pays(*costs)).build(drafter, context(seed, room=6, warp=warp)), drafter

    here, short = grown()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sampled_dynamic, "_without_padding", lambda beam: beam)
        there, long = grown()
    assert sum(map(len, short.asked)) <= sum(map(len, long.asked))
    assert (here.tree.host_tokens, here.tree.shape.parents) == (there.tree.host_tokens, there.tree.shape.parents)
    assert here.confidence == there.confidence and here.notes == there.notes
    assert [(node, one.probability.tolist()) for node, one in here.proposals.items()] == [
        (node, one.probability.tolist()) for node, one in there.proposals.items()
    ]


def best_first(
    kept, offers, level, limit, width, most,
    policy, certainty,
):  # fmt: skip
    """How many of a level's ``offers`` are drawn, and whether to go deeper: the best of them and of what is expected below them,
    one at a time from a heap. ``kept`` are the values and depths of the tree so far."""
    decayed = torch.tensor(decay(width), dtype=torch.float64)
    typical = expected_acceptance(decayed.new_tensor([certainty]), decayed)[0].tolist()
    waiting = [(-value, level, True) for value in offers]
    heapify(waiting)
    values, depths, own = [value for value, _ in kept], [depth for _, depth in kept], [False] * len(kept)
    while waiting and len(values) < most:
        value, depth, offered = heappop(waiting)
        values.append(-value)
        depths.append(depth)
        own.append(offered)
        if depth < limit:
            for share in typical:
                heappush(waiting, (value * share, depth + 1, False))
    chosen = own[len(kept) : len(values) if policy is None else policy.fixed(depths, values)]
    return sum(chosen), len(chosen) > sum(chosen)


@given(
    seed=some.integers(0, 9999),
    temperature=some.floats(0.1, 8.0),
    support=some.sampled_from([None, [2, 6, 1]]),
    sizes=some.tuples(some.integers(1, 5), some.integers(1, 5), some.integers(0, 40)),
    costs=some.sampled_from([(0.001, 0.03), (0.05, 0.001), (0.01, 0.03), (0.2, 0.4)]),
    warp=some.sampled_from([Warp(1.0), Warp(0.6), Warp(1.4, top_p=0.9), Warp(1.0, top_k=2)]),
    certainty=some.floats(0.0, 1.0),
)
def test_each_level_takes_what_a_best_first_search_takes(
    seed, temperature, support, sizes, costs, warp,
    certainty,
):  # fmt: skip
    (depth, width, nodes), drafter, where = sizes, Fancy(seed, temperature, support), context(seed, room=4, warp=warp)
    policy, limit = None if nodes else pays(*costs), min(depth, where.max_depth - 1)
    draft = SampledDynamicTree(depth, width, policy or nodes, certainty).build(drafter, where)
    shape, tokens, found = draft.tree.shape, draft.tree.host_tokens, paths(draft)
    reach, beam = [1.0], [0]
    for level in range(1, limit + 1):
        q = {node: warp.log_probabilities(drafter.distribution(found[node])).exp() for node in beam}
        offers = []
        for node in beam:
            decayed = torch.tensor(decay(min(width, int((q[node] > 0).sum()))), dtype=torch.float64)
            shares = expected_acceptance(q[node].amax()[None], decayed)[0].tolist()
            offers += [(reach[node] * share, node, rank) for rank, share in enumerate(shares)]
        offers.sort(key=lambda offer: -offer[0])
        kept = list(zip(reach[1:], shape.depths[1:], strict=False))
        count, deeper = best_first(kept, [offer[0] for offer in offers], level, limit, width, nodes or MOST, policy, certainty)
        drawn = shape.levels[level] if level < len(shape.levels) else ()
        assert Counter(shape.parents[node] for node in drawn) == Counter(parent for _, parent, _ in offers[:count])
        worth = {(parent, rank): value for value, parent, rank in offers}
        for node in drawn:
            parent = shape.parents[node]
            slot = tokens[node] if support is None else support.index(tokens[node])
            rank = shape.children[parent].index(node)
            reach.append(worth[parent, rank] if rank else reach[parent] * float(first_acceptance(q[parent][slot])))
        if not deeper or not drawn:
            break
        beam = sorted(sorted(drawn, key=lambda node: -reach[node])[:width])
    assert len(draft.tree) == len(reach)
    assert [math.exp(value) for value in draft.notes[0].data["value"]] == pytest.approx(reach, abs=1e-9)


@pytest.mark.parametrize("likeliest", [0.0, 0.3, 0.7, 1.0])
def test_later_children_are_worth_less_and_all_together_no_more_than_one(likeliest):
    shares = expected_acceptance(torch.tensor([likeliest]), torch.tensor(decay(12)))[0].tolist()
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1
    likely, unlikely = first_acceptance(torch.tensor([1.0, 0.1])).tolist()
    assert 0 < unlikely < likely <= 1


def test_what_a_captured_level_reads_lives_as_long_as_its_result(monkeypatch):
    kept, tree = [], SampledDynamicTree(3, 2, 6)
    level = SampledDynamicTree._level
    monkeypatch.setattr(SampledDynamicTree, "_level", lambda self, *given: kept.append(level(self, *given)) or kept[-1])
    tree.build(Fancy(4, support=[2, 6, 1]), context())
    (constants,) = tree._known.values()
    alive = [weakref.ref(tensor) for tensor in (constants.decay, constants.numbers, *constants.below[0])]
    del tree, constants
    gc.collect()
    assert kept and all(one() is not None for one in alive)
