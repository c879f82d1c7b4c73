"""Whole recipes on the emulated GPU: what is read together, where tensors lie, and weights with a card at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specviz.drafters.networks.recurrent_net import RecurrentConfig
from specviz.drafters.networks.weights import read_weights
from specviz.training.common import data
from specviz.training.common.loop import checkpoint_of
from specviz.training.common.target_assets import TargetAssets
from specviz.training.draft_model import small_draft
from specviz.training.families import falcon, owl
from specviz.training.feature import medusa, recipes
from specviz.training.registry import Job
from specviz.training.registry import recipes as known_recipes
from tests.support.emulated_cuda import DEVICE, emulated_cuda
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_training import MARKERS, VOCAB, dialogues

MAKE: dict[str, Callable[[Job], None]] = {
    "eagle": recipes.make, "eagle3": recipes.make, "medusa": medusa.make, "small_draft": small_draft.make,
    "falcon": falcon.make, "owl": owl.make,
}  # fmt: skip


@pytest.fixture
def tiny_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tiny target on the emulated GPU, its dialogues, and a folder for weights."""
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(data, "find", lambda names: [])
    monkeypatch.setattr(data, "read_all", lambda files: dialogues(200))
    for module in (recipes, medusa, small_draft, falcon, owl):
        monkeypatch.setattr(module, "WEIGHTS", tmp_path)
    monkeypatch.setattr(medusa, "TREES", tmp_path)
    monkeypatch.setattr(owl, "RecurrentConfig", partial(RecurrentConfig, width=24, entry=24, word=24))
    monkeypatch.setattr(owl, "LENGTH", 16)  # as short as the tiny answers
    monkeypatch.setattr(owl, "EARLIEST", 2)
    monkeypatch.setattr(owl.some_places, "__defaults__", (16,))
    with emulated_cuda():
        model = tiny_llama(dtype=torch.float32, vocab=VOCAB).to(DEVICE)
        target = SimpleNamespace(model=model, name="tiny", device=DEVICE, tokenizer_hash="")
        assets = TargetAssets(target, model.get_input_embeddings().weight.detach(), MARKERS, ())
        monkeypatch.setattr(recipes, "target_assets", lambda device: assets)
        yield tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_a_recipe_reads_an_updates_dialogues_together_and_writes_its_weights(
    name: str, tiny_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[int] = []
    one_pass = recipes.joined
    monkeypatch.setattr(recipes, "joined", lambda several: (joined.append(len(several)), one_pass(several))[1])
    MAKE[name](Job(known_recipes()[name], "cuda", 0.02, False))
    card = read_weights(tiny_world / f"{name}.safetensors")[1]
    batch = owl.GPU_WIDER * owl.Settings.batch if name == "owl" else recipes.GPU_BATCH
    assert json.loads(card["metrics"]) and f'"batch": {batch}' in card["recipe"] and "on cuda" in card["spent"]
    assert name in ("small_draft", "owl") or set(joined) == {recipes.GPU_BATCH}


@pytest.mark.slow
def test_without_a_checkpoint_a_small_draft_model_goes_on_from_the_weights_that_ship(tiny_world: Path) -> None:
    recipe = known_recipes()["small_draft"]
    small_draft.make(Job(recipe, "cuda", 0.02, False))
    path = tiny_world / "small_draft.safetensors"
    before, first = read_weights(path)
    checkpoint_of("small_draft").unlink()
    small_draft.make(Job(recipe, "cuda", 0.001, True))  # one update or a few, on whatever machine
    after, card = read_weights(path)
    assert card["spent"].startswith(f"{first['spent']}, then ")
    apart = (after["leave.weight"] - before["leave.weight"]).norm() / before["leave.weight"].norm()
    assert torch.equal(after["draft_ids"], before["draft_ids"]) and 0 < float(apart) < 1, "the same network, a little further"
