"""Second rung of the ladder: sampled drafts leave the target's law as it is, by enumeration and by thousands of runs.

Known wrong variants are put through the same harness, which has to notice them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specviz.acceptance.match import Match
from specviz.acceptance.rejection import Rejection
from specviz.acceptance.remaining import remaining
from specviz.engine.interfaces import Acceptance, Context, Draft, Proposal, TargetPass
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree, TreeShape, chain, shape_from_counts
from specviz.growth.sampled import Sampled

# Enumeration proves the arithmetic; the runs are there for what it leaves out: growth, noise, the walk.
ROUNDS = 5_000
RUNS = 20_000


def laws(rows: int, vocab: int, seed: int, heat: float = 1.2) -> Tensor:
    torch.manual_seed(seed)
    return torch.softmax(heat * torch.randn(rows, vocab, dtype=torch.float64), -1)


def emitted_law(p: Tensor, proposal: Proposal, tries: int, drawn_from: Tensor | None = None) -> Tensor:
    """The exact law of the token after a node whose ``tries`` children are drawn from the proposal without replacement.

    Every outcome of the draws and of the coins is enumerated. ``drawn_from`` is what they are really drawn from.
    """
    out = torch.zeros_like(p)
    ids = range(p.numel()) if proposal.ids is None else proposal.ids.tolist()
    q = dict(zip(ids, (proposal.probability if drawn_from is None else drawn_from).tolist(), strict=True))
    for order in itertools.permutations([token for token in q if q[token] > 0], tries):
        weight, left = 1.0, 1.0
        for token in order:
            weight *= q[token] / left
            left -= q[token]
        rest = remaining(p.clone(), proposal, order)
        for token in order:
            chance = rest.threshold(token)
            out[token] += weight * chance
            weight *= 1 - chance
            if weight <= 0:
                break
            rest.reject(token)
        if weight > 0:
            law = rest.law()
            out += weight * law / law.sum()
    return out


@pytest.mark.parametrize("tries", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_rejection_gives_the_targets_law_exactly(tries: int, seed: int) -> None:
    p, q = laws(2, 6, seed)
    assert (emitted_law(p, Proposal(q), tries) - p).abs().max() < 1e-12


@pytest.mark.parametrize("tries", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_drafter_that_knows_a_few_tokens_only_is_exact_too(tries: int, seed: int) -> None:
    p = laws(1, 9, seed)[0]
    few = laws(1, 4, seed + 50)[0]
    ids = torch.tensor([7, 0, 4, 2])
    assert (emitted_law(p, Proposal(few, ids), tries) - p).abs().max() < 1e-12
    whole = torch.zeros(9, dtype=torch.float64).index_copy(0, ids, few)
    assert (emitted_law(p, Proposal(whole), tries) - p).abs().max() < 1e-12


def test_a_large_support_is_handled_like_a_small_one() -> None:
    p = laws(1, 400, 3)[0]
    ids = torch.randperm(400)[:100]
    q = laws(1, 100, 4)[0]
    whole = torch.zeros(400, dtype=torch.float64).index_copy(0, ids, q)
    sparse, dense = (remaining(p.clone(), proposal, []) for proposal in (Proposal(q, ids), Proposal(whole)))
    for token in ids[q.argsort(descending=True)[:4]].tolist():
        assert sparse.threshold(token) == pytest.approx(dense.threshold(token), abs=1e-12)
        sparse.reject(token)
        dense.reject(token)
        ours, theirs = sparse.law() / sparse.law().sum(), dense.law() / dense.law().sum()
        assert (ours - theirs).abs().max() < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_guesses_nobody_drew_count_as_certain(seed: int) -> None:
    p = laws(1, 6, seed)[0]
    left, weight, out = remaining(p.clone(), None, [4, 1]), 1.0, torch.zeros(6, dtype=torch.float64)
    for token in (4, 1):
        out[token] += weight * left.threshold(token)
        weight *= 1 - left.threshold(token)
        left.reject(token)
    out += weight * left.law() / left.law().sum()
    assert (out - p).abs().max() < 1e-12


def test_the_harness_notices_an_argmax_draft_judged_as_if_drawn() -> None:
    p, q = laws(2, 6, 0)
    argmax = torch.zeros_like(q)
    argmax[q.argmax()] = 1.0
    assert (emitted_law(p, Proposal(q), 1, drawn_from=argmax) - p).abs().max() > 0.05


class Told:
    """A drafter whose laws are given: one row a depth, whatever the path."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        def depth(node: int) -> int:
            return 0 if node == 0 else 1 + depth(parents[node])

        return [Proposal(self._rows[depth(node)]) for node in nodes]

    def calls(self) -> int:
        return 1

    def story(self, picks: Sequence[object]) -> tuple[()]:
        return ()


def joint_law(
    shape: TreeShape, acceptance: Acceptance, spoil: Callable[[Draft], Draft] = lambda draft: draft
) -> tuple[Counter[tuple[int, ...]], Tensor]:
    """Counts of the first two tokens over many rounds, and the target's law of the two, p[depth] at every node."""
    vocab = 4
    p, q = laws(3, vocab, 11), laws(3, vocab, 12)
    growth, drafter, counts = Sampled(shape), Told(q), Counter()
    warp = Warp(1.0)
    for run in range(ROUNDS):
        context = Context([0], 1, 0, warp, Noise(run), torch.device("cpu"), 100, story=False)
        draft = spoil(growth.grow(drafter, context))
        logits = p[list(draft.tree.shape.depths)].log()
        verdict = acceptance.judge(draft, TargetPass(logits), context)
        found = [draft.tree.host_tokens[node] for node in verdict.path] + [verdict.bonus]
        if len(found) == 1:  # the next round would go on with the target's own law: draw it here
            found.append(int(torch.multinomial(p[1], 1, generator=torch.Generator().manual_seed(run))))
        counts[tuple(found[:2])] += 1
    return counts, torch.outer(p[0], p[1])


def distance(counts: Counter[tuple[int, ...]], law: Tensor) -> float:
    """Total variation between counted pairs and the law [vocab, vocab]."""
    total = sum(counts.values())
    pairs = itertools.product(range(law.shape[0]), range(law.shape[1]))
    return sum(abs(counts[pair] / total - float(law[pair])) for pair in pairs) / 2


SHAPES = {"chain": chain(2), "siblings": shape_from_counts([[3]]), "tree": shape_from_counts([[2], [2, 1]])}


@pytest.mark.parametrize("rule", [Rejection(), Match()], ids=["rejection", "match"])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_joint_law_of_two_tokens_survives(shape: str, rule: Acceptance) -> None:
    counts, law = joint_law(SHAPES[shape], rule)
    # Sixteen outcomes, 5 000 rounds: a right rule is within 0.03 but for one time in a thousand.
    assert distance(counts, law) < 0.035


def test_siblings_sorted_by_their_own_probability_are_noticed() -> None:
    def sorted_by_q(draft: Draft) -> Draft:
        children = draft.tree.shape.children[0]
        order = sorted(children, key=lambda node: -(draft.confidence[node] or 0.0))
        tokens = [draft.tree.host_tokens[0], *(draft.tree.host_tokens[node] for node in order)]
        return Draft(DraftTree.of(tokens, draft.tree.shape.parents), draft.proposals, draft.confidence)

    counts, law = joint_law(SHAPES["siblings"], Rejection(), sorted_by_q)
    assert distance(counts, law) > 0.05


def test_one_token_over_many_rounds() -> None:
    """The whole path, noise included, for one drawn guess: chi-square with five degrees of freedom."""
    p, q = laws(2, 6, 21)
    counts, warp, growth, drafter = Counter(), Warp(1.0), Sampled(chain(1)), Told(q[None])
    logits = p.log().expand(2, -1)
    for run in range(RUNS):
        context = Context([0], 1, 0, warp, Noise(run), torch.device("cpu"), 100, story=False)
        draft = growth.grow(drafter, context)
        verdict = Rejection().judge(draft, TargetPass(logits), context)
        counts[draft.tree.host_tokens[1] if verdict.path else verdict.bonus] += 1
    square = sum((counts[token] - RUNS * float(p[token])) ** 2 / (RUNS * float(p[token])) for token in range(6))
    assert square < 20.5  # one in a thousand
