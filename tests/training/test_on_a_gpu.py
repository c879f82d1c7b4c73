"""Whole recipes on the emulated GPU: what is read together, where tensors lie, and weights with a card at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specviz.drafters.networks.weights import read_weights
from specviz.training.common import data
from specviz.training.common.target_assets import TargetAssets
from specviz.training.draft_model import small_draft
from specviz.training.falcon import make_falcon
from specviz.training.feature import medusa, recipes
from specviz.training.owl import make_owl
from specviz.training.registry import Job
from specviz.training.registry import recipes as known_recipes
from tests.support.emulated_cuda import DEVICE, emulated_cuda
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_training import MARKERS, VOCAB, dialogues

MAKE: dict[str, Callable[[Job], None]] = {
    "eagle": recipes.make, "eagle3": recipes.make, "medusa": medusa.make, "small_draft": small_draft.make,
    "falcon": make_falcon.make, "owl": make_owl.make,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_a_recipe_reads_an_updates_dialogues_together_and_writes_its_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(data, "find", lambda names: [])
    monkeypatch.setattr(data, "read_all", lambda files: dialogues(200))
    for module in (recipes, medusa, small_draft, make_falcon, make_owl):
        monkeypatch.setattr(module, "WEIGHTS", tmp_path)
    monkeypatch.setattr(medusa, "TREES", tmp_path)
    joined: list[int] = []
    one_pass = recipes.joined
    monkeypatch.setattr(recipes, "joined", lambda several: (joined.append(len(several)), one_pass(several))[1])
    with emulated_cuda():
        model = tiny_llama(dtype=torch.float32, vocab=VOCAB).to(DEVICE)
        target = SimpleNamespace(model=model, name="tiny", device=DEVICE, tokenizer_hash="")
        assets = TargetAssets(target, model.get_input_embeddings().weight.detach(), MARKERS, ())
        monkeypatch.setattr(recipes, "target_assets", lambda device: assets)
        MAKE[name](Job(known_recipes()[name], "cuda", 0.02, False))
    card = read_weights(tmp_path / f"{name}.safetensors")[1]
    batch = make_owl.GPU_WIDER * make_owl.Settings.batch if name == "owl" else recipes.GPU_BATCH
    assert json.loads(card["metrics"]) and f'"batch": {batch}' in card["recipe"] and "on cuda" in card["spent"]
    assert name in ("small_draft", "owl") or set(joined) == {recipes.GPU_BATCH}
