"""What judging leaves first puts on record: weights, uniform draws, who was rescued, and its behaviour at the edges."""

from functools import partial

import pytest
import torch

from specviz.acceptance.exact import Rejection
from specviz.engine.interfaces import Draft, Proposal, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree
from specviz.methods.traversal.verification import NodeResidual, Traversal
from specviz.trace.schema import ACCEPTED, REJECTED, ROOT, SKIPPED
from tests.support import rounds

P = torch.tensor([0.1, 0.2, 0.35, 0.35], dtype=torch.float64)
Q = torch.tensor([0.4, 0.3, 0.15, 0.15], dtype=torch.float64)
DRAWN = Proposal(Q)
PARENTS = [-1, 0, 0, 1, 1, 2, 5]
TOKENS = [9, 1, 3, 0, 2, 2, 0]


context = partial(rounds.context, [0, 1, 2], 5, warp=Warp(1.0))


def scored(rows):
    return TargetPass(P.log().expand(rows, -1))


def tree(distribution=DRAWN):
    shape = DraftTree.of(TOKENS, PARENTS)
    return Draft(shape, {} if distribution is None else dict.fromkeys(set(PARENTS[1:]), distribution))


def verdicts(count=300, distribution=DRAWN):
    return [Traversal().judge(tree(distribution), scored(len(TOKENS)), context(seed=seed)) for seed in range(count)]


def visits(verdict):
    return list(verdict.notes[0].data["visits"])


def test_leaves_are_judged_before_their_parents():
    found = max(verdicts(), key=lambda one: len(one.draws))
    assert list(found.draws) == [node for node in [3, 4, 1, 6, 5, 2] if node in found.draws]
    assert len(found.draws) >= 5


def test_every_node_but_the_one_that_took_it_all_failed_its_coin():
    for found in verdicts():
        judged = list(found.draws)
        assert judged == list(found.thresholds)
        for node in judged:
            taken = found.draws[node] < found.thresholds[node]
            assert taken == (bool(found.path) and node == found.path[-1])
            assert found.statuses[node] == (ACCEPTED if taken else REJECTED)
        assert found.statuses[0] == ROOT
        assert all(found.statuses[node] == ACCEPTED for node in found.path)
        reached = {*judged, *found.path, 0}
        assert {found.statuses[node] for node in range(len(TOKENS)) if node not in reached} <= {SKIPPED}
        assert found.visited[-1] == (found.path[-1] if found.path else 0)
        assert len(set(found.visited)) == len(found.visited)


def test_the_note_tells_the_walk_in_its_order():
    for found in verdicts(100):
        told = visits(found)
        ended = [visit for visit in told if visit["outcome"] == "accepted"]
        assert [visit["node"] for visit in ended] == [found.path[-1] if found.path else 0]
        passed = [visit["node"] for visit in told if visit["outcome"] == "passed"]
        assert passed == list(found.path[-2::-1])
        failed = [visit for visit in told if visit["outcome"] == "failed"]
        assert [visit["node"] for visit in failed] == [node for node in found.draws if node not in found.path]
        for visit in failed:
            assert visit["draw"] == found.draws[visit["node"]] >= visit["weight"]


def test_rescued_nodes_are_those_the_rule_from_above_does_not_reach():
    rescues = 0
    for seed, found in enumerate(verdicts()):
        above = Rejection().judge(tree(), scored(len(TOKENS)), context(seed=seed)).path
        assert found.notes[0].data["top_down"] == len(above)
        assert found.notes[0].data["rescued"] == [node for node in found.path if node not in above]
        rescues += bool(found.notes[0].data["rescued"])
    assert rescues > 0
    assert not Traversal().judge(tree(), scored(len(TOKENS)), context(story=False)).notes


def test_a_wide_support_gives_the_numbers_of_the_whole_vocabulary():
    generator = torch.Generator().manual_seed(1)
    p = torch.softmax(2 * torch.randn(900, generator=generator, dtype=torch.float64), -1)
    ids = torch.randperm(900, generator=generator)[:200]
    few = torch.softmax(2 * torch.randn(200, generator=generator, dtype=torch.float64), -1)
    whole = torch.zeros(900, dtype=torch.float64).index_copy(0, ids, few)
    outside = float(p.index_fill(0, ids, 0).sum())
    sparse, dense = (
        NodeResidual(0.7, p[ids], outside, few, ids),
        NodeResidual(0.7, p, 0.0, whole, None),
    )
    for token in ids[few.argsort(descending=True)[:5]].tolist():
        assert sparse.weight_of(token) == pytest.approx(dense.weight_of(token), abs=1e-12)
        sparse.fail(token)
        dense.fail(token)
        assert sparse.weight == pytest.approx(dense.weight, abs=1e-12)
        first, second = sparse.distribution(p), dense.distribution(p)
        assert (first / first.sum() - second / second.sum()).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_when_every_token_was_drafted_and_failed_the_distribution_stays_one(dtype):
    logits = P.log().to(dtype).expand(5, -1)
    every = Draft(DraftTree.of([9, 0, 1, 2, 3], [-1, 0, 0, 0, 0]), {0: Proposal(P.to(dtype), torch.arange(4))})
    for seed in range(100):
        found = Traversal().judge(every, TargetPass(logits), context(seed=seed))
        assert 0 <= found.bonus < 4
        assert len(found.path) == 1
