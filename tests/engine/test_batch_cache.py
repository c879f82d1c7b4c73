"""A batch's cache: rows behind holes score as behind a plain cache, and a sweep of the holes changes no logit."""

import random

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from specviz.engine.tree import DraftTree
from specviz.targets.text import TextTarget
from specviz.targets.text_rows import TextRows
from tests.support.rounds import entries
from tests.support.tiny.text import VOCAB, tiny_llama, tiny_target


def grown(target, rounds, every, seed=0):
    """Three rows after some rounds of random trees of which random paths were kept, and their texts."""
    generator = random.Random(seed)
    rows, texts = TextRows(target, [8, 8, 8]), [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]]
    for number, text in enumerate(texts):
        rows.prefill(number, text)
    for number in range(rounds):
        trees = [_random_tree(generator) for _ in texts]
        rows.score(trees)
        for row, tree in enumerate(trees):
            path = tree.shape.path(generator.randrange(len(tree)))
            rows.cache.keep(row, path)
            texts[row] += [tree.host_tokens[node] for node in path]
        if every and (number + 1) % every == 0:
            rows.cache.compact()
    return rows, texts


def row_entries(rows, row):
    """A row's committed keys and values in position order, [1, head, kv, size] each."""
    slots, part = rows.cache.slots_of[row], slice(row, row + 1)
    return [(layer.key_buffer[part, :, slots], layer.value_buffer[part, :, slots]) for layer in rows.cache.store.layers]


def _random_tree(generator):
    size = generator.randrange(1, 12)
    parents = [-1, *(generator.randrange(node) for node in range(1, size))]
    return DraftTree.of([generator.randrange(VOCAB) for _ in range(size)], parents)


@pytest.mark.parametrize("every", [0, 1, 2, 5])
def test_the_cache_of_every_row_equals_a_fresh_prefill_of_its_text(every):
    target = tiny_target()
    rows, texts = grown(target, 13, every)
    for row, text in enumerate(texts):
        fresh = target.open(len(text))
        fresh.prefill(text)
        assert rows.cache.length(row) == fresh.length == len(text)
        for ours, theirs in zip(row_entries(rows, row), entries(fresh), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert float((one - other).abs().max()) < 1e-9


def _passes(target, rows, seed):
    generator = random.Random(seed)
    return [found.logits for found in rows.score([_random_tree(generator) for _ in range(3)])]


def sliding_target():
    """Every layer sees only the last nine tokens, which slots with holes between them must not confuse."""
    torch.manual_seed(3)
    config = MistralConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.25, sliding_window=9, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval().to(torch.float64).requires_grad_(False)
    return TextTarget(model, "sliding", ())


def eager_kernel_target():
    model = tiny_llama()
    model.config._attn_implementation = "eager"
    return TextTarget(model, "eager kernel", ())


def _rounding(target):
    """How far sums in another order may lie apart: transformers' eager kernel takes its softmax in float32."""
    return 1e-4 if target.attention == "eager" else 1e-10


@pytest.mark.parametrize("make", [tiny_target, sliding_target, eager_kernel_target])
def test_a_sweep_changes_no_logit(make):
    target = make()
    rows, _ = grown(target, 11, 0)
    holes = [rows.cache.holes(row) for row in range(3)]
    assert sum(holes) > 10
    before = _passes(target, rows, 5)
    moved = rows.cache.compact()
    assert moved > 10
    assert [rows.cache.holes(row) for row in range(3)] == [0, 0, 0]
    after = _passes(target, rows, 5)
    for one, other in zip(before, after, strict=True):
        assert float((one - other).abs().max()) < _rounding(target)
    assert rows.cache.compact() == 0, "there is nothing left to move"


@pytest.mark.parametrize("make", [tiny_target, sliding_target, eager_kernel_target])
def test_trees_behind_holes_score_as_behind_a_plain_cache(make):
    target = make()
    rows, texts = grown(target, 9, 4)
    generator = random.Random(8)
    trees = [_random_tree(generator) for _ in texts]
    for row, found in enumerate(rows.score(trees)):
        alone = target.open(len(texts[row]))
        alone.prefill(texts[row])
        assert float((found.logits - alone.score(trees[row]).logits).abs().max()) < _rounding(target)


def test_taps_come_back_row_by_row():
    target = tiny_target()
    rows = TextRows(target, [8, 8], taps=(1, 2))
    for row, text in enumerate([[1, 2, 3], [4, 5, 6, 7]]):
        alone = target.open(8, (1, 2))
        first, second = rows.prefill(row, text), alone.prefill(text)
        for tap in (1, 2):
            assert first.hidden[tap].shape == (len(text), 32)
            assert float((first.hidden[tap] - second.hidden[tap]).abs().max()) < 1e-10
    trees = [DraftTree.of([1, 2, 3], [-1, 0, 0]), DraftTree.of([4], [-1])]
    assert [found.hidden[1].shape[0] for found in rows.score(trees)] == [3, 1]
