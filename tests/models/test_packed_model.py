"""A whole model in one file: what is written comes back, loads by its name, and runs with its own drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

import specviz
from specviz.errors import BadInput, ModelUnavailable
from specviz.models import drafts, load, prepare
from specviz.models.load import load_causal_lm
from specviz.models.packed_model import read_model, tokenizer_hash_in, unpack, write_model
from specviz.targets.causal import causal_target
from specviz.targets.hybrid_ssm import HybridTarget
from specviz.training.state_space_data import END, START, small_tokenizer
from tests.tiny_hybrid import hybrid, pure

TEXTS = [f"{START}user\nWhy is the sky blue?{END}\n{START}assistant\nBecause light scatters.{END}\n"] * 4
PROMPT = "Why is the sky?"


def spell() -> Tokenizer:
    return small_tokenizer(TEXTS, 280)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose shipped hybrid and its drafter are tiny random ones."""
    weights = tmp_path / "assets" / "weights"
    size = spell().get_vocab_size()
    for name, model in (("hybrid", hybrid(dtype=torch.float32, vocab=size)), ("hybrid_draft", pure(vocab=size))):
        model.config.eos_token_id, model.config.bos_token_id = 1, 0
        write_model(weights / f"{name}.safetensors", model, spell(), {"recipe": "a test"})
    monkeypatch.setattr(prepare, "_ROOT", tmp_path)
    monkeypatch.setattr(drafts, "WEIGHTS", weights)
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    load.release()
    yield weights
    load.release()


def test_a_model_comes_back_within_the_rounding_of_its_bytes(tmp_path: Path) -> None:
    model, path = hybrid(dtype=torch.float32), tmp_path / "one.safetensors"
    write_model(path, model, spell(), {"recipe": "a test"})
    back = read_model(path)
    assert back.card == {"recipe": "a test"} and back.tokenizer.to_str() == spell().to_str()
    for name, value in model.state_dict().items():
        assert torch.allclose(back.model.state_dict()[name], value, atol=float(value.abs().max()) / 100), name
    unpack(path, tmp_path / "folder")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        one.name for one in (tmp_path / "folder").iterdir()
    }


def test_the_shipped_hybrid_loads_by_its_name_in_its_own_number_format(shelf: Path) -> None:
    loaded = load_causal_lm("hybrid-small")
    assert loaded.dtype == torch.float32, "whatever the machine would choose"
    assert loaded.eos_ids == {1} and loaded.has_template and loaded.architecture.recurrent
    assert loaded.text.decode(loaded.text.encode(PROMPT)) == f"{START}user\n{PROMPT}{END}\n{START}assistant\n"
    assert isinstance(causal_target(loaded.model, "hybrid-small", loaded.eos_ids), HybridTarget)
    assert tokenizer_hash_in(shelf / "hybrid_draft.safetensors") == loaded.tokenizer_hash


def test_a_pure_state_space_model_loads_without_attention_s_facts(shelf: Path) -> None:
    loaded = load_causal_lm("hybrid-small-draft", "float64")
    shape = loaded.architecture
    assert shape.layer_types == ("linear_attention",) * 3 and shape.recurrent and shape.context_length > 10**5
    assert loaded.warnings == (), "there is no attention that could be slow"


def test_trees_run_on_it_by_name_with_its_own_drafter(shelf: Path) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "target": "hybrid-small", "max_new_tokens": 24, "baseline": True}
    trace = specviz.run(method="stree", **asked)
    assert trace.run.draft == "hybrid-small-draft" and trace.run.dtype == "float32"
    assert trace.end is not None and trace.end.baseline is not None and trace.end.baseline.equal
    assert {note.type for step in trace.steps for note in step.notes} >= {"ssm_mask", "growth"}
    chain = specviz.run(method="speculative_sampling", **asked)
    assert chain.run.draft == "hybrid-small-draft"


def test_methods_that_cannot_run_on_it_say_why(shelf: Path) -> None:
    for name in ("eagle", "eagle3"):
        with pytest.raises(ModelUnavailable, match="hybrid-small has others"):
            specviz.run(method=name, prompt=PROMPT, target="hybrid-small", max_new_tokens=4)
    with pytest.raises(BadInput, match="drawn"):
        specviz.run(method="stree", prompt=PROMPT, target="hybrid-small", parameters={"rule": "ratio"})


def test_missing_weights_say_how_to_get_them(shelf: Path) -> None:
    (shelf / "hybrid.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="specviz train hybrid"):
        load_causal_lm("hybrid-small")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    from specviz.drafters.weights import write_weights

    write_weights(tmp_path / "other.safetensors", {"x": torch.zeros(2, 2)}, {})
    with pytest.raises(ModelUnavailable, match="no packed model"):
        read_model(tmp_path / "other.safetensors")
    assert tokenizer_hash_in(tmp_path / "nowhere.safetensors") == ""
