"""Trees that follow confidence: the beam expands, and the best candidates of all stay."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from specviz.drafting.trees.dynamic import DRAFT_COST, MIN_CONFIDENCE_TEMPERATURE, Dynamic, SpeedupPolicy
from specviz.engine.cost import CostCurve
from specviz.engine.sampling import Warp
from tests.support.rounds import context
from tests.support.worlds.fancy import Fancy, paths, searched


@pytest.mark.parametrize(("depth", "width", "nodes"), [(1, 3, 2), (3, 2, 6), (4, 3, 12), (5, 4, 30), (3, 9, 25)])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_all_that_the_beams_considered_stay(depth, width, nodes, seed):
    drafter = Fancy(seed)
    draft = Dynamic(depth, width, nodes).build(drafter, context())
    candidates = searched(drafter, depth, width)
    best = sorted(candidates, key=lambda path: -candidates[path])[:nodes]
    assert sorted(paths(draft)[1:]) == sorted(best)
    assert draft.calls == depth == len(drafter.asked)


@given(seed=some.integers(0, 10_000), depth=some.integers(1, 5), width=some.integers(1, 5), nodes=some.integers(1, 40))
def test_a_kept_node_has_its_parent_and_no_twin(seed, depth, width, nodes):
    # So flat and coarse a distribution makes ties everywhere.
    drafter = Fancy(seed, temperature=0.0 if seed % 2 else 1.0)
    draft = Dynamic(depth, width, nodes).build(drafter, context())
    found = paths(draft)
    assert len(set(found)) == len(found)
    assert all(path[:-1] in found for path in found[1:])
    assert len(found) - 1 == min(nodes, draft.notes[0].data["considered"])
    assert not draft.proposals, "a ranked child is certain: nothing may pass it off as drawn"


def test_what_has_no_mass_is_no_candidate():
    class Choosy(Fancy):
        def distribution(self, path):
            distribution = super().distribution(path)
            distribution[3:] = -math.inf
            return distribution

    draft = Dynamic(2, 6, 40).build(Choosy(), context())
    assert len(draft.tree) == 1 + 3 + 9
    assert max(draft.tree.host_tokens[1:]) < 3


def test_tokens_are_the_targets_where_the_drafter_has_a_vocabulary_of_its_own():
    drafter = Fancy(support=[11, 2, 30, 7])
    draft = Dynamic(3, 2, 8).build(drafter, context())
    assert set(draft.tree.host_tokens[1:]) <= {11, 2, 30, 7}
    best = sorted(searched(drafter, 3, 2).items(), key=lambda one: -one[1])[:8]
    assert sorted(paths(draft)[1:]) == sorted(path for path, _ in best)


def test_the_temperature_does_not_change_the_tree():
    cold, warm = (Dynamic(4, 3, 12).build(Fancy(), context(warp=warp)) for warp in (Warp(), Warp(1.3, 5, 0.8)))
    assert cold.tree.host_tokens == warm.tree.host_tokens


@pytest.mark.parametrize(
    ("floor", "size", "temperature", "read_at"),
    [
        (0.4, 12, 0.0, 0.4), (0.4, 12, 0.2, 0.4), (0.4, 12, 0.8, 0.8), (0.4, 12, 1.5, 1.5), (None, 12, 0.0, 1.0),
        (None, lambda probabilities, forwards: 12, 0.0, MIN_CONFIDENCE_TEMPERATURE),
    ],
)  # fmt: skip
def test_a_cooled_tree_reads_probabilities_at_the_runs_temperature_or_its_floor(floor, size, temperature, read_at):
    drafter = Fancy()
    draft = Dynamic(4, 3, size, temperature_floor=floor).build(drafter, context(warp=Warp(temperature)))
    assert draft.confidence[0] is None
    for node, path in enumerate(paths(draft)[1:], start=1):
        distribution = (drafter.distribution(path[:-1]) / read_at).softmax(-1)
        assert draft.confidence[node] == pytest.approx(float(distribution[path[-1]]))


@pytest.mark.parametrize(("room", "depth"), [(1, 0), (2, 1), (4, 3), (50, 5)])
def test_a_tree_leaves_the_contexts_last_place_to_the_bonus_token(room, depth):
    draft = Dynamic(5, 2, 40).build(Fancy(), context(room=room))
    assert max(draft.tree.shape.depths) == depth == draft.calls


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_drafter_that_can_go_no_deeper_ends_the_tree(most):
    draft = Dynamic(5, 2, 40).build(Fancy(most=most), context())
    assert max(draft.tree.shape.depths) == most


# What is left over, and the story of it.


def test_dropped_candidates_are_shown_below_their_parents():
    draft = Dynamic(4, 4, 10).build(Fancy(), context())
    story = draft.notes[0].data
    parents = [*draft.tree.shape.parents, *(up for up, _, _ in draft.pruned)]
    assert all(parent < node for node, parent in enumerate(parents))
    assert len(story["value"]) == len(parents) == 1 + story["considered"], "so few that all can be shown"
    assert story["kept"] == len(draft.tree)
    kept, left = story["value"][1 : story["kept"]], story["value"][story["kept"] :]
    assert min(kept) >= max(left)
    q = [1.0, *draft.confidence[1:], *(share for _, _, share in draft.pruned)]
    for node, parent in enumerate(parents[1:], start=1):
        assert story["value"][node] == pytest.approx(story["value"][parent] + math.log(q[node]))


def test_no_more_is_shown_than_anybody_can_look_at():
    draft = Dynamic(6, 7, 5).build(Fancy(), context())
    assert len(draft.pruned) == 96
    parents = [*draft.tree.shape.parents, *(up for up, _, _ in draft.pruned)]
    assert all(0 <= parent < node for node, parent in enumerate(parents[1:], start=1))
    shown = sum(len(beam) for beam in draft.notes[0].data["beams"])
    assert shown == 1 + 6 * 7, "the beams are what the story is about"


# How many nodes pay.

CURVE = CostCurve((1, 8, 16, 32), (10.0, 12.0, 18.0, 40.0))


def test_a_fitted_tree_has_the_size_that_pays_most():
    probabilities = [0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.01]
    for forwards in (0, 3):
        rates = []
        for nodes in range(len(probabilities) + 1):
            rates.append((1 + sum(probabilities[:nodes])) / (CURVE.at(nodes + 1) + forwards * DRAFT_COST * 10.0))
        assert SpeedupPolicy.on(CURVE)(probabilities, forwards) == rates.index(max(rates))


@pytest.mark.parametrize("seed", range(4))
def test_sure_rounds_get_larger_trees_than_doubtful_ones(seed):
    sure, doubtful = (
        Dynamic(5, 4, SpeedupPolicy.on(CURVE)).build(Fancy(seed, temperature), context()) for temperature in (4.0, 0.5)
    )
    assert max(sure.tree.shape.depths) > max(doubtful.tree.shape.depths)


def test_a_sure_drafter_keeps_a_chain_connected():
    """Probabilities of 1 make every node of the chain worth the same: only the order tells parent from child."""
    drafter = Fancy(temperature=5000.0)
    draft = Dynamic(6, 3, 4).build(drafter, context())
    assert draft.tree.shape.parents == (-1, 0, 1, 2, 3)


def test_padding_that_is_paid_for_is_used():
    probabilities = [0.5] + [0.001] * 30
    assert SpeedupPolicy.on(CURVE)(probabilities, 2) == 1
    assert SpeedupPolicy.on(CURVE, "graph")(probabilities, 2) == 7, "a pass of two rows is one of eight there"
