"""What arms are judged by: the estimate against enumeration and Monte Carlo, the queue against its order."""

import itertools

import numpy as np
import pytest

from specviz.methods.hedgespec.selection import DelayQueue, expected_length


def distributions(vocab, seed):
    """Markov distributions of target and drafter, [token before, token]."""
    generator = np.random.default_rng(seed)

    def one():
        table = np.exp(1.5 * generator.standard_normal((vocab, vocab)))
        return table / table.sum(1, keepdims=True)

    target = one()
    return target, 0.5 * target + 0.5 * one()


def truth(p, q, ahead):
    """Tokens that a round of ordinary speculative sampling emits in expectation: 1 + the probabilities that k drafts are kept."""
    weight, total = np.zeros(len(p)), 1.0
    weight[0] = 1.0
    for _ in range(ahead):
        weight = weight @ np.minimum(p, q)
        total += weight.sum()
    return total


def shares(p, q, text):
    found, before = [], 0
    for token in text:
        found.append((float(np.minimum(p[before], q[before]).sum()), min(1.0, q[before, token] / p[before, token])))
        before = token
    return found


def probability_of(p, text):
    generator, before = 1.0, 0
    for token in text:
        generator *= p[before, token]
        before = token
    return float(generator)


@pytest.mark.parametrize("seed", range(4))
def test_the_estimate_is_unbiased_over_every_text_the_target_may_write(seed):
    p, q = distributions(4, seed)
    texts = list(itertools.product(range(4), repeat=4))
    mean = sum(probability_of(p, text) * expected_length(shares(p, q, text)) for text in texts)
    assert mean == pytest.approx(truth(p, q, 4), abs=1e-12)


def test_with_shared_masses_in_the_place_of_realised_ratios_it_is_not():
    p, q = distributions(4, 0)
    texts = list(itertools.product(range(4), repeat=4))

    def published(text):
        return expected_length([(shared, shared) for shared, _ in shares(p, q, text)])

    assert abs(sum(probability_of(p, text) * published(text) for text in texts) - truth(p, q, 4)) > 1e-3


def test_a_start_waits_until_all_of_its_chain_is_known():
    queue, found = DelayQueue(3), []
    for place in range(10, 15):
        found.append(len(queue.add(place, [lambda *pair: (1.0, 1.0), lambda *pair: (0.0, 0.0)])))
        assert queue.waiting == [(one, place - one + 1) for one in range(max(10, place - 1), place + 1)][-2:]
    assert found == [0, 0, 1, 1, 1]
    queue.clear()
    assert queue.waiting == []


def test_losses_do_not_hang_on_how_rounds_cut_the_text():
    """Rounds of one token and a round of six settle the same starts with the same losses."""
    generator = np.random.default_rng(3)
    known = {(start, place): tuple(generator.random(2)) for start in range(12) for place in range(start, 12)}

    def settled(rounds):
        queue, found, place = DelayQueue(4), [], 0
        for count in rounds:
            for _ in range(count):
                found += queue.add(place, [lambda *pair: known[pair]])
                place += 1
        return found

    assert settled([1] * 12) == settled([6, 6]) == settled([1, 4, 2, 5]) and len(settled([12])) == 9
