"""The bar that a run sets for its memory: it follows what both halves brought, and learns from guesses nobody drafted."""

from types import SimpleNamespace

import pytest
import torch

from specviz.drafting.trees.retrieved import followed
from specviz.engine.interfaces import Draft, Round
from specviz.engine.tree import DraftTree
from specviz.methods.owl.drafting import TREE, AdaptiveThreshold, HybridController, expected
from specviz.trace.notes.drafts import SuffixNote
from tests.support.rounds import context


def guess(tokens, parents, shares):
    tree = DraftTree.of([9, *tokens], [-1, *parents], torch.device("cpu"))
    return Draft(tree, confidence=[None, *shares])


def finished(*emitted):
    nobody = None
    return Round(nobody, nobody, nobody, nobody, emitted)


FORK = guess([1, 2, 3, 4], [0, 1, 1, 2], [0.5, 0.8, 0.2, 1.0])


def test_a_guess_expects_the_sum_of_its_paths_probabilities():
    assert expected(FORK) == pytest.approx(0.5 + 0.4 + 0.1 + 0.4)
    assert expected(guess([], [], [])) == 0


@pytest.mark.parametrize(("emitted", "steps"), [((), 0), ((5,), 0), ((1, 3), 2), ((1, 3, 4), 2), ((1, 2, 4, 8), 3)])
def test_committed_tokens_are_followed_down_the_branch_they_took(emitted, steps):
    assert len(followed(FORK.tree.host_tokens, FORK.tree.shape.parents, emitted)) == steps


def test_before_anything_was_seen_a_score_is_taken_at_its_word():
    assert AdaptiveThreshold().bar() == pytest.approx(TREE)


def test_the_bar_rises_where_guesses_fail_and_falls_where_trees_do():
    sure = guess([1, 2, 3], [0, 1, 2], [1.0, 1.0, 1.0])
    bad, good, poor = AdaptiveThreshold(), AdaptiveThreshold(), AdaptiveThreshold()
    for _ in range(30):
        bad.learn(finished(7, 8), sure, False)  # the network drafted; the memory would have been wrong at once
        good.learn(finished(1, 2, 3, 4), sure, True)
        poor.learn(finished(7), None, False)
    assert bad.bar() > 5 and good.bar() < TREE * 1.3 and poor.bar() < 0.3


def test_a_guess_that_was_right_as_far_as_anyone_saw_is_not_held_against_the_memory():
    long, short = guess([1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5], [1.0] * 6), AdaptiveThreshold()
    for _ in range(30):
        short.learn(finished(1, 2), long, False)
    right = short.bar()
    for _ in range(30):
        short.learn(finished(1, 2), long, True)  # drafted itself and stopped after two: now it was wrong
    assert right == pytest.approx(1.0, abs=0.1) and short.bar() > 1.5 * right


def test_an_estimate_follows_the_text():
    weighing = AdaptiveThreshold()
    sure = guess([1, 2, 3], [0, 1, 2], [1.0, 1.0, 1.0])
    for _ in range(60):
        weighing.learn(finished(7), sure, False)
    high = weighing.bar()
    for _ in range(60):
        weighing.learn(finished(1, 2, 3, 4), sure, True)
    assert weighing.bar() < high / 2


@pytest.mark.parametrize(("room", "half", "score"), [(9, "suffix", 6.0), (1, "tree", 0.0)])
def test_the_score_that_is_told_is_the_one_that_was_weighed(room, half, score):
    """Near the end only a part of a guess has room, and what was left out is not held against the network."""
    guessed = SimpleNamespace(tokens=[1, 2, 3, 4, 5, 6], parents=[0, 1, 2, 3, 4, 5], share=lambda node: 1.0)
    note = SuffixNote("context", 0, 1, 1, 6, 6.0, 0.0, True, {"context": 6.0}, (), (), 0).to_note()
    memory = SimpleNamespace(guess=lambda now: (guessed, (note,)))
    nobody = None
    network = SimpleNamespace(build=lambda drafter, now: guess([], [], []))
    told = HybridController(nobody, network, memory).draft(context([9], room=room)).notes[0]
    assert (told.data["half"], told.data["score"]) == (half, score)
    assert (half == "suffix") == (told.data["score"] >= told.data["threshold"])
