"""The lattice and its search: columns by mass, paths that beat each place's argmax, the fence, and the gauge of length."""

import itertools
import math

import numpy as np
import pytest
import torch

from specviz.methods.diffuspec.lattice import Gauge, columns, fence, search

NOBODY = frozenset()


class Chain:
    """An n-gram model that looks at the last token alone: a Markov chain's distribution, over tokens 0, 1, …"""

    def __init__(self, distribution):
        self.distribution = distribution

    def log_probability(self, before, tokens):
        return np.log(np.maximum(self.distribution[before[:, 1]][:, tokens], 1e-12))


def markov(words, seed, sharp=3.0):
    generator = np.random.default_rng(seed)
    distribution = np.exp(sharp * generator.standard_normal((words, words)))
    return distribution / distribution.sum(1, keepdims=True)


def marginals(distribution, start, places):
    """What an exact masked model says of ``places`` masks behind ``start``: powers of the chain's distribution."""
    row, found = np.eye(len(distribution))[start], []
    for _ in range(places):
        row = row @ distribution
        found.append(row)
    return np.stack(found)


def as_columns(shares, mass=1.0, cap=15, ends=NOBODY):
    return columns(
        torch.from_numpy(np.log(shares)), torch.arange(shares.shape[1]), mass, cap, torch.tensor(sorted(ends), dtype=torch.long)
    )


def accepted(distribution, start, path):
    """Expected accepted length of a chain of point masses when the chain's own distribution judges it."""
    total, generator, before = 0.0, 1.0, start
    for token in path:
        generator *= distribution[before, token]
        total += generator
        before = token
    return total


def test_a_column_holds_the_fewest_tokens_that_have_the_mass():
    shares = np.array([[0.5, 0.3, 0.15, 0.05], [0.05, 0.9, 0.03, 0.02]])
    found = as_columns(shares, mass=0.8)
    assert [column.tokens.tolist() for column in found] == [[0, 1], [1]]
    assert [column.tokens.tolist() for column in as_columns(shares, mass=0.81)] == [[0, 1, 2], [1]]
    assert [len(column.tokens) for column in as_columns(shares, mass=1.0, cap=3)] == [3, 3]
    np.testing.assert_allclose(np.exp(found[0].log_q), [0.5, 0.3])


def test_an_end_stays_a_candidate_and_is_a_fence_only_where_it_is_likeliest():
    shares = np.array([[0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.2, 0.1, 0.7], [0.9, 0.05, 0.05]])
    found = as_columns(shares, mass=0.5, ends=frozenset({2}))
    assert [column.tokens.tolist() for column in found] == [[0, 2], [0, 2], [2]], "nothing behind the fence"
    assert fence(found, frozenset({2})) == 3 and fence(found[:2], frozenset({2})) is None and fence([], frozenset({2})) is None
    assert [column.tokens.tolist() for column in as_columns(shares, mass=0.5)] == [[0], [0], [2], [0]]


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_as_wide_as_the_lattice_finds_the_best_of_all_paths(weight, seed):
    distribution = markov(4, seed)
    lattice = as_columns(marginals(distribution, 0, 4))
    found = search(lattice, Chain(distribution), [3, 0], weight, 4**4, NOBODY)

    def worth(path):
        before, total = 0, 0.0
        for column, token in zip(lattice, path, strict=True):
            q = float(column.log_q[column.tokens.tolist().index(token)])
            total += weight * q + (1 - weight) * math.log(max(distribution[before, token], 1e-12))
            before = token
        return total

    best = max(itertools.product(range(4), repeat=4), key=worth)
    assert found.path == best
    assert found.steps[-1].scores[0] == pytest.approx(worth(best))


def test_without_the_ngrams_the_path_is_each_place_s_likeliest_token():
    shares = marginals(markov(6, 1), 2, 6)
    found = search(as_columns(shares), Chain(np.zeros((6, 6))), [0, 2], 1.0, 3, NOBODY)
    assert found.path == tuple(shares.argmax(1).tolist())


def test_beams_follow_the_last_two_tokens_they_took():
    class Asked(Chain):
        def log_probability(self, before, tokens):
            seen.append(before.tolist())
            return super().log_probability(before, tokens)

    seen = []
    distribution = markov(5, 3)
    found = search(as_columns(marginals(distribution, 1, 3)), Asked(distribution), [4, 1], 0.5, 2, NOBODY)
    assert seen[0] == [[4, 1]] and all(row[0] == 1 for row in seen[1])
    picks = [
        [as_columns(marginals(distribution, 1, 3))[at].tokens[pick] for pick in step.picks] for at, step in enumerate(found.steps)
    ]
    assert [row[1] for row in seen[2]] == picks[1]
    assert [row[0] for row in seen[2]] == [picks[0][parent] for parent in found.steps[1].parents]


def test_a_path_ends_where_the_end_is_what_the_best_beam_takes_and_is_dropped_elsewhere():
    distribution = np.full((3, 3), 1 / 3)
    shares = np.array([[0.7, 0.2, 0.1], [0.45, 0.1, 0.45], [0.3, 0.3, 0.4]])
    ends = frozenset({2})
    found = search(as_columns(shares, ends=ends), Chain(distribution), [0, 0], 1.0, 3, ends)
    assert found.ended and found.path == (0, 0, 2), "a tie in the second place goes to what goes on"
    assert all(
        2 not in [as_columns(shares, ends=ends)[at].tokens[pick] for pick in step.picks]
        for at, step in enumerate(found.steps[:-1])
    )
    never = search(as_columns(shares[:1], ends=ends), Chain(distribution), [0, 0], 1.0, 3, ends)
    assert not never.ended and never.path == (0,)


def test_the_gauge_follows_what_was_drafted_and_grows_where_all_was_kept():
    gauge = Gauge(20, 30, 10)
    assert gauge.length == 30
    gauge.learn(30, 4)
    assert (gauge.drafted, gauge.accepted, gauge.length) == (15.0, 2.0, 20), "clipped from below"
    for _ in range(8):
        gauge.learn(24, 2)
    assert gauge.length == 23, "the mean of what was drafted, rounded down"
    for _ in range(60):
        gauge.learn(22, 22)
    assert gauge.length == 30, "all kept: ten more, clipped from above"
    for _ in range(12):
        gauge.learn(3, 1)
    assert gauge.length == 20, "the text is about to end"


OURS = (2, 6, 2)
"""The shipped bounds."""


def lengths(rounds, rule=OURS):
    """Lengths of rounds in which so much was drafted before an end (None: all of the block) and so much of it accepted."""
    gauge, found = Gauge(*rule), []
    for drafted, accepted in rounds:
        found.append(gauge.length)
        whole = gauge.length if drafted is None else drafted
        gauge.learn(whole, min(accepted, gauge.length))
    return [*found, gauge.length]


@pytest.mark.parametrize(("rule", "stays"), [(OURS, 3), ((20, 30, 10), 20)])
def test_a_drafter_that_is_refused_now_and_then_drafts_as_the_rule_begins(rule, stays):
    """The published rule adds its stride only while nothing was refused, so here it falls once and stays."""
    generator = np.random.default_rng(4)
    found = lengths([(None, 0), *((None, int(generator.choice([0, 1, 2, 30]))) for _ in range(60))], rule)
    assert found[0] == rule[1] and set(found[1:]) == {stays}


def test_an_end_in_sight_shortens_the_draft_and_what_is_kept_beyond_it_lengthens_it_again():
    found = lengths([(None, 1), (None, 0), (2, 1), (1, 1), (1, 0), (0, 1), (0, 1), (0, 1), (None, 9), (None, 9), (None, 1)])
    assert found == [6, 3, 3, 2, 2, 2, 2, 2, 2, 3, 4, 3]
