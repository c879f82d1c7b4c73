"""``train deer`` from end to end on tiny stand-ins: both stages, and a card with the figures before and after."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.networks.weights import read_weights
from specviz.models.heads.lora_heads import load_changed
from specviz.training import data, driver, features
from specviz.training.families import masked
from specviz.training.registry import Job, recipes
from tests.support.training.tiny_masked import fresh
from tests.support.training.tiny_training import MARKERS, VOCAB, dialogues, embedding


class Target:
    """Stands in for the target's model: random logits."""

    def __call__(self, ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.randn(1, ids.shape[1], VOCAB))


@pytest.fixture(name="folder")
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    target = SimpleNamespace(device=torch.device("cpu"), model=Target(), name="tiny", tokenizer_hash="words")
    assets = SimpleNamespace(markers=MARKERS, embedding=embedding(), target=target)
    for module in (masked, driver):
        monkeypatch.setattr(module, "WEIGHTS", tmp_path)
    monkeypatch.setattr(features, "target_assets", lambda device: assets)
    monkeypatch.setattr(features, "store_for", lambda model, name, told, markers: SimpleNamespace(dialogues=told))
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(masked, "MEASURED", (120, 5, 4000))
    monkeypatch.setattr(masked, "SHOWN", (12, 5, 100))
    threads = torch.get_num_threads()
    fresh().eval().save(tmp_path / "masked_lm.safetensors", {"metrics": '{"tau": 1.0}'})
    data.write(tmp_path / "d.npz", dialogues(120))
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_what_is_shipped_is_a_change_to_the_base_and_its_card_compares_the_arms(folder: Path) -> None:
    masked.make(Job(recipes()["deer"], "cpu", 0.03, False, (str(folder / "d.npz"),)))
    factors, card = read_weights(folder / "deer.safetensors")
    found = json.loads(card["metrics"])
    assert list(found) == ["start", "deer"]
    assert found["start"] == {"tau": 1.0} and found["deer"]["tau"] >= 1
    assert {"first1", "alone1", "longest", "gap"} <= set(found["deer"])
    base = MaskedLM.load(folder / "masked_lm.safetensors", (embedding(),), torch.float32, torch.device("cpu"))
    made = load_changed(folder / "deer.safetensors", base, folder / "masked_lm.safetensors")
    ids = torch.tensor([*MARKERS.prefix, *dialogues().of(3)[:8]])
    assert (made(ids, 4) != base(ids, 4)).any() and torch.equal(made.bias, base.bias)
    assert card["tokenizer_hash"] == "words" and factors
