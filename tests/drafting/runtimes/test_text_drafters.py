"""The model-free drafters do what their papers' pseudo-code says, checked against slow independent readings of it."""

import random
from functools import partial

import pytest
import torch

from specviz.drafting.memory.prompt_copy import PromptCopy
from specviz.engine.sampling import Warp
from specviz.methods.registry import published_tree
from specviz.methods.stand.ngram_store import Entry, NgramStore, best_tokens, warped
from specviz.methods.token_recycling.successors import SuccessorMatrix, top_successors
from tests.support import rounds

context = partial(rounds.context, room=10_000)


def as_published(ids, longest, copied):
    """Prompt lookup as the reference does it: longest suffix, earliest occurrence, only with a full continuation."""
    for size in range(longest, 0, -1):
        for start in range(len(ids) - size + 1):
            if ids[start : start + size] == ids[-size:]:
                end = start + size
                if end + copied <= len(ids) and end < len(ids) - size:
                    return ids[end : end + copied]
    return []


@pytest.mark.parametrize(("longest", "copied"), [(3, 10), (1, 4), (5, 2), (2, 1)])
def test_prompt_lookup_copies_what_the_reference_copies(longest, copied):
    probability, found = random.Random(longest * 31 + copied), 0
    for _ in range(300):
        ids = [probability.randrange(4) for _ in range(probability.randrange(2, 60))]
        drafter = PromptCopy(longest, 1, copied, latest=False, partial=False)
        drafter.begin(context(ids), None)
        tokens, _ = drafter.continuation(context(ids))
        assert list(tokens) == as_published(ids, min(longest, len(ids) - 1), copied)
        found += bool(tokens)
    assert found > 100


def test_prompt_lookup_says_where_it_copied_from():
    ids = [1, 2, 3, 4, 5, 6, 9, 1, 2]
    drafter = PromptCopy(3, 1, 3, latest=False, partial=False)
    drafter.begin(context(ids), None)
    tokens, (note,) = drafter.continuation(context(ids))
    assert list(tokens) == [3, 4, 5]
    assert dict(note.data) == {"suffix_start": 7, "suffix_length": 2, "source": 2, "length": 3}


def test_the_latest_occurrence_and_short_copies_are_a_choice():
    ids = [7, 1, 7, 2, 3, 7]
    latest = PromptCopy(1, 1, 2, latest=True, partial=False)
    latest.begin(context(ids), None)
    assert list(latest.continuation(context(ids))[0]) == [2, 3]
    partial = PromptCopy(1, 1, 10, latest=True, partial=True)
    partial.begin(context(ids), None)
    assert list(partial.continuation(context(ids))[0]) == [2, 3, 7]


def test_a_copy_stops_before_the_end_of_the_context():
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 1]
    drafter = PromptCopy(1, 1, 6, latest=False, partial=False)
    drafter.begin(context(ids), None)
    assert list(drafter.continuation(context(ids, room=3))[0]) == [2, 3]


@pytest.mark.parametrize("vocab", [6, 50, 700, 49_152])
def test_best_successors_are_the_largest_logits(vocab):
    torch.manual_seed(vocab)
    logits = torch.randn(5, vocab)
    width = min(8, vocab)
    assert torch.equal(top_successors(logits), logits.topk(width, dim=-1).indices)


def test_the_last_write_to_a_row_wins():
    matrix = SuccessorMatrix(20)
    assert matrix.read(3) == []
    matrix.write([3, 4, 3], torch.tensor([[1] * 8, [2] * 8, [5] * 8]))
    assert matrix.read(3) == [5] * 8
    assert matrix.read(4) == [2] * 8


def test_the_published_tree_has_the_published_levels():
    shape = published_tree("token_recycling")
    assert [len(level) for level in shape.levels] == [1, 8, 21, 25, 15, 8, 3]
    # The last two of the published list: 0-0-0-0-0-1 and 0-0-0-1-0-0, as child ranks from the root.
    paths = [shape.path(node) for node in shape.levels[6]]
    ranks = [[shape.children[up].index(node) for up, node in zip(path, path[1:], strict=False)] for path in paths]
    assert ranks == [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0]]


def test_rows_of_the_store_are_running_means():
    entry = Entry(1, {1: 0.6, 2: 0.4})
    entry.add({1: 0.2, 3: 0.8})
    assert entry.distribution == pytest.approx({1: 0.4, 3: 0.4, 2: 0.2})
    entry.add({2: 0.9})
    assert entry.distribution == pytest.approx({1: 0.8 / 3, 3: 0.8 / 3, 2: 0.4 / 3 + 0.3})
    assert entry.visits == 3


def test_the_longest_known_n_gram_answers():
    store = NgramStore()
    store.learn([1, 2, 3], {7: 1.0})
    store.learn([9, 9, 3], {8: 1.0})
    assert store.lookup([0, 1, 2, 3]) == (4, Entry(1, {7: 1.0}))
    order, entry = store.lookup([5, 2, 3]) or (0, None)
    assert (order, entry.distribution) == (3, {7: 1.0})
    order, entry = store.lookup([5, 5, 3]) or (0, None)
    assert order == 2
    assert entry.distribution == pytest.approx({7: 0.5, 8: 0.5})
    assert store.lookup([5, 5, 4]) is None


def test_a_row_is_read_at_the_runs_temperature():
    distribution = {4: 0.5, 5: 0.25, 6: 0.125}
    assert warped(distribution, Warp(1.0)) == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert warped(distribution, Warp(0.5)) == pytest.approx([16 / 21, 4 / 21, 1 / 21])
    assert warped(distribution, Warp(1.0, top_k=1)) == pytest.approx([1.0, 0.0, 0.0])


def test_learned_rows_are_the_targets_probabilities():
    logits = torch.randn(2, 30, dtype=torch.float64)
    rows = best_tokens(logits)
    p = logits.softmax(-1)
    assert all(rows[row][token] == pytest.approx(float(p[row, token])) for row in range(2) for token in rows[row])
    assert list(rows[0]) == p[0].topk(10).indices.tolist()
