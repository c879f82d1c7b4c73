"""Second rung of the ladder: sampled drafts leave the target's distribution as it is, by enumeration and by 20 000 judged
rounds.

Known wrong variants go through the same harness, which has to notice them.
"""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from specviz.acceptance import exact as rules
from specviz.acceptance.exact import Match, Rejection
from specviz.acceptance.residual import DenseResidual, remaining
from specviz.engine.interfaces import Draft, Proposal
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree, chain, shape_from_counts
from specviz.methods.traversal.verification import Traversal
from tests.support.rounds import residual
from tests.support.worlds.three_tokens import (
    World,
    best,
    context,
    drawn,
    exact_distribution,
    judged,
    rebuilt,
    share,
    total_variation,
)

BINARY = shape_from_counts([[2], [2, 2]])
SHAPES = {
    "chain": chain(2),
    "siblings": shape_from_counts([[3]]),
    "tree": BINARY,
    "lopsided": shape_from_counts([[2], [0, 2]]),
}
WARPS = {"plain": Warp(1.0), "cool": Warp(0.7), "nucleus": Warp(1.3, 3, 0.9)}


def off(world: World, found: Tensor) -> float:
    """The largest error of a distribution of three tokens."""
    return float((found - world.distribution()).abs().max())


# Enumeration: one node.


def distribution_after(p: Tensor, q: Tensor, proposal: Proposal, tries: int) -> Tensor:
    """The distribution of the token after a node whose children are drawn from ``q`` without replacement and tried in that
    order."""
    out = torch.zeros_like(p)
    for order in itertools.permutations(q.nonzero()[:, 0].tolist(), tries):
        weight, undrawn, left = 1.0, 1.0, residual(p.clone(), proposal)
        for token in order:
            weight *= float(q[token]) / undrawn
            undrawn -= float(q[token])
        for token in order:
            probability = left.threshold(token)
            out[token] += weight * probability
            weight *= 1 - probability
            if weight == 0:
                break
            left.reject(token)
        out += weight * left.distribution() / left.distribution().sum()
    return out


def random_distribution(vocab: int, seed: int, temperature: float = 1.2) -> Tensor:
    made = torch.randn(vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(temperature * made, -1)


@pytest.mark.parametrize("tries", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_what_remains_keeps_the_distribution_of_one_token(tries, seed):
    p, q = random_distribution(6, seed, 2.0), random_distribution(6, seed + 50, 2.0)
    assert (distribution_after(p, q, Proposal(q), tries) - p).abs().max() < 1e-12


@pytest.mark.parametrize("tries", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_drafter_of_few_tokens_keeps_it_too(tries, seed):
    p, ids, few = random_distribution(9, seed), torch.tensor([7, 0, 4, 2]), random_distribution(4, seed + 50)
    whole = torch.zeros(9, dtype=torch.float64).index_copy(0, ids, few)
    listed, dense = distribution_after(p, whole, Proposal(few, ids), tries), distribution_after(p, whole, Proposal(whole), tries)
    assert (listed - p).abs().max() < 1e-12
    assert (dense - p).abs().max() < 1e-12


def test_a_large_support_gives_the_numbers_of_the_whole_vocabulary():
    p, ids, q = (
        random_distribution(400, 3),
        torch.randperm(400, generator=torch.Generator().manual_seed(1))[:100],
        random_distribution(100, 4),
    )
    whole = torch.zeros(400, dtype=torch.float64).index_copy(0, ids, q)
    sparse, dense = residual(p.clone(), Proposal(q, ids)), residual(p.clone(), Proposal(whole))
    for token in ids[q.argsort(descending=True)[:4]].tolist():
        assert sparse.threshold(token) == pytest.approx(dense.threshold(token), abs=1e-12)
        sparse.reject(token)
        dense.reject(token)
        assert (
            sparse.distribution() / sparse.distribution().sum() - dense.distribution() / dense.distribution().sum()
        ).abs().max() < 1e-12


# Enumeration: whole rounds over a drawn tree, through the judge itself.


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "listed"])
@pytest.mark.parametrize("warp", list(WARPS))
@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_judged_tree_keeps_the_distribution_of_three_tokens(shape, warp, sparse, monkeypatch):
    world = World(3, 5, WARPS[warp], sparse)
    if warp == "nucleus" and not torch.equal(world.proposal(()).probability > 0, torch.ones(3, dtype=torch.bool)):
        world = World(4, 6, WARPS[warp], sparse)
    drafts = drawn(world, SHAPES[shape])
    assert off(world, exact_distribution(world, drafts, Rejection(), monkeypatch)) < 1e-12


def test_children_nobody_drew_count_as_certain(monkeypatch):
    world = World(3, 1)
    assert off(world, exact_distribution(world, [(1.0, best(world, BINARY))], Rejection(), monkeypatch)) < 1e-12


def test_noticed_best_tokens_judged_as_if_drawn(monkeypatch):
    world = World(3, 1)
    posing = best(world, BINARY, with_proposals=True)
    found = exact_distribution(world, [(1.0, posing)], Rejection(), monkeypatch)
    assert total_variation(found, world.distribution()) > 0.05


def by_share(draft: Draft, node: int) -> list[int]:
    return sorted(draft.tree.shape.children[node], key=lambda child: -share(draft, node, child))


SLIPS: dict[str, Callable[[World], Iterator[tuple[float, Draft]]]] = {
    "siblings sorted by probability": lambda world: (
        (probability, rebuilt(draft, by_share)) for probability, draft in drawn(world, BINARY)
    ),
    "a drawn tree pruned by score": lambda world: (
        (probability, rebuilt(draft, lambda draft, node: by_share(draft, node)[:1]))
        for probability, draft in drawn(world, BINARY)
    ),
    "draws with replacement judged as without": lambda world: drawn(world, BINARY, again=True),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=["from the root", "from the leaves"])
@pytest.mark.parametrize("slip", SLIPS)
def test_noticed_slips_of_a_drafter(slip, rule, monkeypatch):
    world = World(3, 1)
    assert total_variation(exact_distribution(world, SLIPS[slip](world), rule, monkeypatch), world.distribution()) > 0.01


def test_noticed_drafter_not_renormalised(monkeypatch):
    class Forgetful(DenseResidual):
        def reject(self, token):
            super().reject(token)
            self._q = torch.where(self._q > 0, self._whole, 0.0)

    def forgetful(target, table, drawn):
        if not drawn:
            return remaining(target, table, drawn)
        left = Forgetful(target, table)
        left._whole = table.q
        return left

    world = World(3, 1)
    monkeypatch.setattr(rules, "remaining", forgetful)
    found = exact_distribution(world, drawn(world, BINARY), Rejection(), monkeypatch)
    assert total_variation(found, world.distribution()) > 0.05


def test_noticed_bonus_from_the_unwarped_distribution(monkeypatch):
    world = World(3, 1, Warp(0.6))
    unwarped = World(3, 1)
    found = exact_distribution(unwarped, drawn(world, SHAPES["chain"]), Rejection(), monkeypatch)
    assert total_variation(found, world.distribution()) > 0.05


# Growth, judge and noise together.


# A right rule strays by sampling alone: with 64 outcomes and n rounds about 3.2 / sqrt(n) of total variation.


@pytest.mark.parametrize(("drafts", "bound"), [(250, 0.07), pytest.param(1_000, 0.03, marks=pytest.mark.slow)])
def test_thousands_of_judged_trees_keep_the_distribution_of_three_tokens(drafts, bound):
    world = World(4, 9, Warp(0.9), sparse=True)
    assert total_variation(judged(world, BINARY, Rejection(), drafts, 20), world.distribution()) < bound


@pytest.mark.slow
def test_matching_a_drawn_tree_keeps_it():
    world = World(4, 11)
    assert total_variation(judged(world, BINARY, Match(), 500, 10), world.distribution()) < 0.06


@pytest.mark.slow
def test_a_tree_is_accepted_as_often_as_its_children_are_likely():
    """One draw decides between all siblings: a draw for each of them would accept more, and bend the distribution."""
    world = World(4, 12)
    draft = Draft(DraftTree.of([0, 3, 1], [-1, 0, 0]))
    scored = world.scored(draft.tree)
    hits = sum(len(Match().judge(draft, scored, context(Noise(seed), world.warp)).path) for seed in range(4_000))
    expected = float(world.p[0][3] + world.p[0][1])
    assert abs(hits / 4_000 - expected) < 4 * (expected * (1 - expected) / 4_000) ** 0.5
