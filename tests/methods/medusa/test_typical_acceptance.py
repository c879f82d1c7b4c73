"""Typical acceptance: what stays, which path wins, what the record says, and where the rule meets the exact one."""

import math
from functools import partial

import pytest
import torch

from specviz.engine.interfaces import Draft, TargetPass
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree
from specviz.methods.medusa.typical_acceptance import Typical
from specviz.trace.schema import ACCEPTED, REJECTED, RELAXED, ROOT, SKIPPED
from tests.support import rounds

SURE = [0.9, 0.05, 0.03, 0.02]
FLAT = [0.28, 0.26, 0.24, 0.22]


context = partial(rounds.context, [0, 1, 2], 5, warp=Warp(1.0))


def scored(*distributions):
    return TargetPass(torch.tensor(distributions, dtype=torch.float64).log())


def entropy(distribution):
    return -sum(p * math.log(p) for p in distribution)


def tree(tokens, parents):
    return Draft(DraftTree.of([9, *tokens], [-1, *parents]))


def test_a_token_stays_where_it_is_above_the_smaller_of_two_bars():
    draft = tree([0, 1, 2, 3], [0, 0, 0, 0])
    for distribution, epsilon, delta in ((SURE, 0.04, 0.3), (SURE, 0.5, 0.01), (FLAT, 0.09, 0.9), (FLAT, 0.09, 1.0)):
        found = Typical(epsilon, delta).judge(draft, scored(*[distribution] * 5), context())
        bar = min(epsilon, delta * math.exp(-entropy(distribution)))
        assert all(found.thresholds[node] == pytest.approx(bar) for node in range(1, 5))
        kept = [node for node in range(1, 5) if distribution[node - 1] > bar]
        assert found.path == (tuple(kept[:1]) if kept else ())
        assert found.rule == "typical"
        assert not found.draws


def test_an_unsure_target_lowers_the_bar():
    draft = tree([3], [0])
    assert Typical(0.3, 0.9).judge(draft, scored(FLAT, FLAT), context()).path == ()
    assert Typical(0.3, 0.5).judge(draft, scored(FLAT, FLAT), context()).path == (1,)
    assert Typical(0.3, 0.5).judge(draft, scored(SURE, FLAT), context()).path == ()


def test_the_longest_path_wins_and_of_equals_the_likelier():
    """Children 0 and 2 of the root; below them 0 and 1, 0. The likelier first token has the shorter or weaker rest."""
    deep = tree([0, 2, 1], [0, 0, 2])
    assert Typical(0.1, 1.0).judge(deep, scored(FLAT, SURE, FLAT, FLAT), context()).path == (2, 3)
    equal = tree([0, 1, 3, 0], [0, 0, 1, 2])
    rows = [[0.4, 0.35, 0.15, 0.1], FLAT, [0.7, 0.1, 0.1, 0.1], FLAT, FLAT]
    assert 0.4 * FLAT[3] < 0.35 * 0.7
    assert Typical(0.1, 1.0).judge(equal, scored(*rows), context()).path == (2, 4)


def test_a_child_of_a_refused_token_does_not_count():
    chain = tree([3, 0, 0], [0, 1, 2])
    found = Typical(0.09, 1.0).judge(chain, scored(SURE, SURE, SURE, SURE), context())
    assert found.path == ()
    assert found.statuses == (ROOT, REJECTED, SKIPPED, SKIPPED)
    assert list(found.thresholds) == [1]
    assert found.visited == (0,)


def test_what_the_exact_rule_would_not_have_taken_is_relaxed():
    chain, target = tree([0, 1], [0, 1]), scored(FLAT, FLAT, FLAT)
    seen = set()
    for seed in range(60):
        found = Typical().judge(chain, target, context(seed=seed))
        assert found.path == (1, 2)
        for node, token in ((1, 0), (2, 1)):
            own = int(Warp(1.0).choose(torch.tensor(FLAT).log().double()[None], [2 + node], Noise(seed)))
            assert found.statuses[node] == (ACCEPTED if own == token else RELAXED)
            seen.add(found.statuses[node])
    assert seen == {ACCEPTED, RELAXED}


def test_a_path_that_lost_is_rejected_though_it_was_good_enough():
    found = Typical(0.1, 1.0).judge(tree([0, 2, 1], [0, 0, 2]), scored(FLAT, FLAT, FLAT, FLAT), context())
    assert found.path == (2, 3)
    assert found.statuses[1] == REJECTED


def test_the_bonus_is_the_targets_own_token_behind_the_path():
    for seed in range(20):
        found = Typical().judge(tree([0], [0]), scored(SURE, FLAT), context(seed=seed))
        own = Warp(1.0).choose(torch.tensor(FLAT).log().double()[None], [4], Noise(seed))
        assert (found.path, found.bonus, found.source) == ((1,), int(own), "target")


def test_a_warped_distribution_is_what_is_judged():
    """Top-k 2 leaves two tokens: the third has no probability, however low the bar."""
    found = Typical(0.01, 0.01).judge(tree([2, 1], [0, 0]), scored(FLAT, FLAT, FLAT), context(warp=Warp(1.0, top_k=2)))
    assert found.path == (2,)
    assert found.thresholds[1] == pytest.approx(min(0.01, 0.01 * math.exp(-entropy([0.28 / 0.54, 0.26 / 0.54]))))
