"""Whole recipes on the emulated GPU: what is read together, where tensors lie, and weights with a card at the end."""

import json

import pytest

from specviz.drafting.networks.weights import read_weights
from specviz.training import driver, registry
from specviz.training.families import feature, medusa
from specviz.training.registry import recipes as known_recipes
from tests.support.emulated_cuda import DEVICE, emulated_cuda
from tests.support.training.tiny_training import short_windows, world

NAMES = ("eagle3", "small_draft", "owl")
"""A recipe of each way to learn from dialogues: by features, by tokens, by windows."""


@pytest.fixture
def tiny_world(tmp_path, monkeypatch):
    """A tiny target on the emulated GPU, its dialogues, and a folder for weights."""
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(driver, "WEIGHTS", tmp_path)
    monkeypatch.setattr(medusa, "TREES", tmp_path)
    short_windows(monkeypatch)
    with emulated_cuda():
        world(monkeypatch, 100, DEVICE)
        yield tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_reads_an_updates_dialogues_together_and_writes_its_weights(name, tiny_world, monkeypatch):
    joined = []
    one_pass = feature.joined
    monkeypatch.setattr(feature, "joined", lambda several: (joined.append(len(several)), one_pass(several))[1])
    registry.train(name, "cuda", 1e-12)
    card, batch = read_weights(tiny_world / f"{name}.safetensors")[1], known_recipes()[name].cuda["batch"]
    assert json.loads(card["metrics"]) and f'"batch": {batch}' in card["recipe"] and "on cuda" in card["spent"]
    assert name in ("small_draft", "owl") or set(joined) == {batch}
