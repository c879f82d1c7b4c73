"""What the accept rules put on record, and their behaviour where rounding or a strange draft could trip them."""

from functools import partial

import pytest
import torch

from specviz.acceptance.exact import Match, Rejection
from specviz.engine.interfaces import Draft, Proposal, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree
from specviz.trace.schema import ACCEPTED, REJECTED, ROOT, SKIPPED
from tests.support import rounds

P = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
Q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)


context = partial(rounds.context, [0, 1, 2], 5, warp=Warp(1.0))


def scored(rows):
    return TargetPass(P.log().expand(rows, -1))


def siblings(tokens, distribution=None):
    tree = DraftTree.of([9, *tokens], [-1] + [0] * len(tokens))
    return Draft(tree, {} if distribution is None else {0: distribution})


def test_a_verdict_carries_the_proof_of_every_coin():
    for seed in range(40):
        verdict = Rejection().judge(siblings([0, 3, 1], Proposal(Q)), scored(4), context(seed=seed))
        judged = list(verdict.draws)
        assert judged == list(verdict.thresholds) == list(range(1, len(judged) + 1))
        for node in judged:
            taken = verdict.draws[node] < verdict.thresholds[node]
            assert verdict.statuses[node] == (ACCEPTED if taken else REJECTED)
        assert verdict.statuses[0] == ROOT
        assert set(verdict.statuses[len(judged) + 1 :]) <= {SKIPPED}
        assert verdict.thresholds[1] == pytest.approx(0.25)  # p/q = 0.1/0.4
        assert verdict.visited == (0, *verdict.path)
        assert verdict.source == ("target" if verdict.path else "residual")


def test_the_rule_is_named_after_the_shape():
    chain = Draft(DraftTree.of([9, 1, 2], [-1, 0, 1]), {0: Proposal(Q), 1: Proposal(Q)})
    assert Rejection().judge(chain, scored(3), context()).rule == "ratio"
    assert Rejection().judge(siblings([1, 2], Proposal(Q)), scored(3), context()).rule == "without_replacement"
    assert Rejection().judge(siblings([1, 2]), scored(3), context(warp=Warp())).rule == "greedy"
    assert Match().judge(siblings([1, 2]), scored(3), context()).rule == "match"


def test_the_overlap_note_is_the_probability_of_acceptance():
    verdict = Rejection().judge(siblings([1], Proposal(Q)), scored(2), context())
    first = verdict.notes[0].data["positions"][0]
    assert first["overlap"] == pytest.approx(0.1 + 0.2 + 0.2 + 0.1)
    assert dict(zip(first["tokens"], first["p"], strict=True)) == pytest.approx(dict(enumerate(P.tolist())))
    assert dict(zip(first["tokens"], first["q"], strict=True)) == pytest.approx(dict(enumerate(Q.tolist())))
    assert not Rejection().judge(siblings([1], Proposal(Q)), scored(2), context(story=False)).notes


@pytest.mark.parametrize("distribution", [Proposal(P), Proposal(P, torch.arange(4)), None], ids=["dense", "listed", "certain"])
def test_nothing_left_falls_back_to_the_target(distribution):
    left = rounds.residual(P, distribution, [0, 1, 2, 3])
    for token in range(4):
        left.threshold(token)
        left.reject(token)
    assert torch.isfinite(left.distribution()).all()
    assert float(left.distribution().sum()) > 0


def test_float32_thresholds_stay_right_when_little_mass_is_left():
    p = torch.full((5000,), 1e-9)
    p[:3] = torch.tensor([0.9, 0.0999, 1e-5])
    p /= p.sum()
    q = torch.tensor([0.9, 0.0999, 1e-4], dtype=torch.float64)
    few, exact = (rounds.residual(distribution, Proposal(q / q.sum(), torch.arange(3))) for distribution in (p, p.double()))
    for token in (0, 1):
        few.reject(token)
        exact.reject(token)
    assert few.threshold(2) == pytest.approx(exact.threshold(2), rel=1e-3, abs=1e-6)


def test_matching_takes_the_first_of_two_equal_siblings():
    verdict = Match().judge(
        siblings([3, 3, 1]), TargetPass(torch.tensor([0.0, 0.0, 0.0, 9.0]).expand(4, -1)), context(warp=Warp())
    )
    assert verdict.path == (1,)
    assert verdict.statuses == (ROOT, ACCEPTED, REJECTED, REJECTED)
    assert verdict.bonus == 3


def test_the_second_siblings_threshold_is_that_of_what_is_left():
    left = rounds.residual(P, Proposal(Q))
    left.reject(0)
    # r = (p - q)+ = (0, 0, 0.1, 0.3) / 0.4 and q without token 0 = (0, 0.3, 0.2, 0.1) / 0.6
    assert left.threshold(1) == 0.0
    assert left.threshold(2) == pytest.approx(0.25 / (0.2 / 0.6))
    assert left.threshold(3) == 1.0
    assert (left.distribution() / left.distribution().sum()).tolist() == pytest.approx([0.0, 0.0, 0.25, 0.75])
