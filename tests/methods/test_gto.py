"""The reward of a tree, against numbers worked out by hand, and the note that carries it."""

import math
from functools import partial

import pytest
import torch

from specviz.acceptance.exact import Match
from specviz.engine.interfaces import Draft, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree
from specviz.methods.gto import Rewarded, branch_lengths, probabilities, tree_reward
from tests.support import rounds

P = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


context = partial(rounds.context, [0, 1, 2], 5)


def scored(*rows):
    return TargetPass(torch.stack(rows).log())


def test_a_chain_is_worth_the_sum_of_its_products():
    # 0.5 + 0.5 * 0.4 + 0.5 * 0.4 * 0.25
    assert branch_lengths([-1, 0, 1, 2], [1.0, 0.5, 0.4, 0.25]) == pytest.approx({3: 0.75})


def test_each_leaf_ends_a_branch_and_branches_share_their_beginning():
    #      root ─ 1 (0.6) ─ 3 (0.5)          L = 0.6 + 0.3
    #           │         └ 4 (0.2)          L = 0.6 + 0.12
    #           └ 2 (0.3)                    L = 0.3
    found = branch_lengths([-1, 0, 0, 1, 1], [1.0, 0.6, 0.3, 0.5, 0.2])
    assert found == pytest.approx({2: 0.3, 3: 0.9, 4: 0.72})
    by_hand = math.log(math.exp(0.3) + math.exp(0.9) + math.exp(0.72))
    assert tree_reward(found.values()) == pytest.approx(by_hand)


def test_a_large_eta_asks_for_the_longest_branch_alone():
    assert tree_reward([0.3, 0.9, 0.72], eta=1000.0) == pytest.approx(0.9, abs=1e-6)
    assert tree_reward([3000.0, 10.0]) == pytest.approx(3000.0), "no overflow on the way"


def test_probabilities_are_the_targets_own_at_the_parent():
    tree = DraftTree.of([9, 3, 1, 0], [-1, 0, 0, 1])
    flipped = P.flip(0)
    found = probabilities(tree, scored(P, flipped, P, P), context())
    assert found == pytest.approx([1.0, 0.4, 0.2, 0.4])
    nucleus = probabilities(tree, scored(P, flipped, P, P), context(warp=Warp(1.0, top_k=1)))
    assert nucleus == pytest.approx([1.0, 1.0, 0.0, 1.0]), "the warped distribution, as the accept rule sees it"


def draft():
    return Draft(DraftTree.of([9, 3, 1, 0], [-1, 0, 0, 1]))


def test_the_note_says_what_each_branch_is_worth():
    rows = scored(P, P.flip(0), P, P)
    verdict = Rewarded(Match()).judge(draft(), rows, context())
    (note,) = verdict.notes
    assert note.type == "tree_reward"
    assert {entry["node"]: entry["length"] for entry in note.data["branches"]} == pytest.approx({2: 0.2, 3: 0.56})
    assert note.data["reward"] == pytest.approx(math.log(math.exp(0.2) + math.exp(0.56)))
    assert note.data["before"] is None and note.data["reference"] is None


@pytest.mark.parametrize("warp", [Warp(), Warp(1.0)])
def test_the_verdict_itself_is_the_rules(warp):
    rows = scored(P, P.flip(0), P, P)
    plain = Match().judge(draft(), rows, context(warp=warp))
    told, silent = (Rewarded(Match()).judge(draft(), rows, context(warp=warp, story=story)) for story in (True, False))
    assert silent == plain, "nobody looks, so nothing is worked out"
    assert (told.path, told.bonus, told.statuses) == (plain.path, plain.bonus, plain.statuses)
