"""Whole recipes on the emulated GPU: what is read together, where tensors lie, and weights with a card at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specviz.drafters.networks.recurrent_net import RecurrentConfig
from specviz.drafters.networks.weights import read_weights
from specviz.training import data, driver, features, registry
from specviz.training.families import feature, medusa, owl
from specviz.training.features import TargetAssets
from specviz.training.registry import recipes as known_recipes
from tests.support.emulated_cuda import DEVICE, emulated_cuda
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_training import MARKERS, VOCAB, dialogues

NAMES = ("eagle", "eagle3", "medusa", "small_draft", "falcon", "owl")


@pytest.fixture
def tiny_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tiny target on the emulated GPU, its dialogues, and a folder for weights."""
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(data, "find", lambda names: [])
    monkeypatch.setattr(data, "read_all", lambda files: dialogues(200))
    monkeypatch.setattr(driver, "WEIGHTS", tmp_path)
    monkeypatch.setattr(medusa, "TREES", tmp_path)
    monkeypatch.setattr(owl, "RecurrentConfig", partial(RecurrentConfig, width=24, entry=24, word=24))
    monkeypatch.setattr(owl, "LENGTH", 16)  # as short as the tiny answers
    monkeypatch.setattr(owl, "EARLIEST", 2)
    monkeypatch.setattr(owl.some_places, "__defaults__", (16,))
    with emulated_cuda():
        model = tiny_llama(dtype=torch.float32, vocab=VOCAB).to(DEVICE)
        target = SimpleNamespace(model=model, name="tiny", device=DEVICE, tokenizer_hash="")
        assets = TargetAssets(target, model.get_input_embeddings().weight.detach(), MARKERS, ())
        monkeypatch.setattr(features, "target_assets", lambda device: assets)
        yield tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_reads_an_updates_dialogues_together_and_writes_its_weights(
    name: str, tiny_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[int] = []
    one_pass = feature.joined
    monkeypatch.setattr(feature, "joined", lambda several: (joined.append(len(several)), one_pass(several))[1])
    registry.train(name, "cuda", 0.02)
    card, batch = read_weights(tiny_world / f"{name}.safetensors")[1], known_recipes()[name].cuda["batch"]
    assert json.loads(card["metrics"]) and f'"batch": {batch}' in card["recipe"] and "on cuda" in card["spent"]
    assert name in ("small_draft", "owl") or set(joined) == {batch}
