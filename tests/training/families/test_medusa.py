"""Heads that see further ahead: their loss, their linear start, and the tree that is fitted to them."""

import json

import pytest
import torch

from specviz.drafting.networks.parallel_net import ParallelConfig, ParallelNet
from specviz.drafting.networks.weights import read_weights
from specviz.drafting.trees.calibrated import CalibratedTree
from specviz.methods.registry import TREES
from specviz.training import acceptance
from specviz.training.families import medusa
from specviz.training.registry import WEIGHTS
from tests.support.training.tiny_training import VOCAB, assets, inputs

HEADS = 3


def store():
    return inputs((0, 1, 2)).store


def network():
    head = assets().target.model.get_output_embeddings().weight.detach()
    return ParallelNet(ParallelConfig(32, HEADS, 2, blocks=0, trunk=1, turned=True), head, None)


def test_ranks_are_places_in_each_heads_own_list():
    net, kept = network(), store()
    ranks = medusa.ranks(net, kept, [4])
    seen = kept.get([4])[0]
    assert ranks.shape == (len(seen.tokens) - 1 - HEADS - (seen.first - 2), HEADS)
    for row, at in enumerate(range(seen.first - 2, len(seen.tokens) - 1 - HEADS)):
        order = net.logits(seen.features[at, -1][None])[:, 0].argsort(-1, descending=True)
        for ahead in range(HEADS):
            rank = order[ahead].tolist().index(int(seen.tokens[at + 2 + ahead]))
            assert int(ranks[row, ahead]) == min(rank, medusa.WIDTH)


def test_the_tree_is_fitted_and_the_heads_are_measured_on_different_answers_that_nobody_learned_from(
    monkeypatch,
):
    given = inputs((0, 1, 2), torch.arange(VOCAB), count=200)
    kept = given.store
    medusa.start(net := network(), kept, given.training[:12])
    asked = []
    plain = medusa.ranks
    monkeypatch.setattr(medusa, "ranks", lambda net, store, numbers: asked.append(list(numbers)) or plain(net, store, numbers))
    tree, found = medusa.fit_tree(given, net, 1)
    assert sorted(sum(asked, [])) == sorted(given.evaluation_set)
    assert len(asked) == 2 and all(asked)
    assert tree.source.startswith(f"{len(asked[0])} held-out greedy answers of tiny")
    for numbers, expected in zip(asked, (1 + sum(tree.probability[:8]), found["tau_8"]), strict=True):
        assert acceptance.metrics(plain(net, kept, numbers), tree.paths[:8])["tree"] == pytest.approx(expected, abs=1e-6)


def test_the_tree_that_ships_expects_what_the_heads_do_on_answers_it_has_not_seen():
    """As far as its own card says: that is a mean over sixty answers, among which it varies by half a token."""
    tree = CalibratedTree.load(TREES / "medusa.json")
    measured = json.loads(read_weights(WEIGHTS / "medusa.safetensors")[1]["metrics"])
    assert "held-out" in tree.source
    assert tree.probability[0] == pytest.approx(measured["first1"], abs=0.02)
    for size in (8, 16, 32):
        assert 1 + sum(tree.probability[:size]) == pytest.approx(measured[f"tau_{size}"], abs=0.1)
