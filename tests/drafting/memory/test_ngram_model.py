"""The n-gram model: counts as one would make them by hand, distributions that sum to one, and a file that keeps them."""

from collections import Counter

import numpy as np
import pytest

from specviz.drafting.memory.ngram_model import DISCOUNT, NgramModel, load, save
from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable
from specviz.training.families.ngrams import count_ngrams

IDS = np.array([3, 5, 8, 9, 20])


def text(seed=0, length=400):
    """Tokens of a few words, some of which are not in the vocabulary."""
    generator = np.random.default_rng(seed)
    found = [3, 5]
    for _ in range(length):
        found.append(int(generator.choice([found[-2], 5, 8, 9, 20, 7], p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1])))
    return np.array(found)


def test_every_context_has_a_distribution_that_sums_to_one():
    model = NgramModel(count_ngrams([text()], IDS, 2, 3))
    before = np.array([[one, other] for one in (*IDS, 7, -1) for other in (*IDS, 7, -1)])
    np.testing.assert_allclose(np.exp(model.log_probability(before, IDS)).sum(1), 1.0)


def test_counts_and_shares_are_those_made_by_hand():
    told = text()
    model = NgramModel(count_ngrams([told], IDS, 1, 1))
    known = set(IDS.tolist())
    inside = [tuple(told[place : place + 3]) for place in range(len(told) - 2)]
    triples = Counter(one for one in inside if set(one) <= known)
    pairs = Counter(pair for pair in zip(told[:-1].tolist(), told[1:].tolist(), strict=True) if set(pair) <= known)
    firsts = Counter(one for one in told[:-1].tolist() if one in known)
    singles = Counter(one for one in told.tolist() if one in known)
    whole = sum(singles.values()) + len(IDS)

    def by_hand(a, b, c):
        one = (singles[c] + 1) / whole
        rest = 1 - sum(max(0.0, pairs[b, x] - DISCOUNT) for x in known if pairs[b, x]) / firsts[b]
        two = max(0.0, pairs[b, c] - DISCOUNT) / firsts[b] + rest * one
        if not pairs[a, b]:
            return two
        rest = 1 - sum(max(0.0, triples[a, b, x] - DISCOUNT) for x in known if triples[a, b, x]) / pairs[a, b]
        return max(0.0, triples[a, b, c] - DISCOUNT) / pairs[a, b] + rest * two

    for a in IDS.tolist():
        for b in IDS.tolist():
            found = np.exp(model.log_probability(np.array([[a, b]]), IDS))[0]
            np.testing.assert_allclose(found, [by_hand(a, b, c) for c in IDS.tolist()])


def test_a_text_never_crosses_into_the_next():
    one = count_ngrams([np.array([3, 5]), np.array([8, 9])], IDS, 1, 1)
    assert one.pairs.tolist() == [1, 0, 1, 0, 0] and len(one.third) == 0


def test_a_word_it_does_not_know_is_as_rare_as_the_rarest():
    model = NgramModel(count_ngrams([text()], IDS, 1, 1))
    found = model.log_probability(np.array([[7, 7], [3, 5]]), np.array([7, *IDS]))
    assert found.shape == (2, 6) and np.isfinite(found).all()
    assert found[0, 0] == found[0, 1:].min() and found[1, 0] <= found[1, 1:].min()


def test_what_is_saved_is_read_the_same(tmp_path):
    counts, path = count_ngrams([text()], IDS, 2, 2), tmp_path / "ngrams.safetensors"
    save(counts, path, {"tokenizer_hash": "words"})
    again, before = load(path), np.array([[3, 5], [8, 3]])
    np.testing.assert_array_equal(again.log_probability(before, IDS), NgramModel(counts).log_probability(before, IDS))
    assert read_weights(path)[1]["tokenizer_hash"] == "words", "read like any weights when the tokenizer is compared"


def test_other_files_are_refused(tmp_path):
    import torch

    path = tmp_path / "other.safetensors"
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        load(path)
    write_weights(path, {"weight": torch.ones(2, 2)}, {})
    with pytest.raises(ModelUnavailable, match="not an n-gram model"):
        load(path)
