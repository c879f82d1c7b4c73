"""A GGUF file becomes safetensors once, with the model and the tokenizer it means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors import safe_open

from specviz.errors import ModelUnavailable
from specviz.models.hub import prepare as copies
from specviz.models.hub.prepare import prepare
from specviz.models.text.load import load_causal_lm
from tests.support.tiny.gguf import write_gguf


@pytest.fixture
def tiny_gguf(tmp_path: Path, byte_level: Any, tiny_model: Any) -> Path:
    kind = gguf.GGMLQuantizationType.Q8_0
    return write_gguf(tmp_path / "tiny.gguf", tiny_model, byte_level, "llama", kind=kind, splitter="smollm")


def test_a_gguf_loads_as_the_model_it_holds(tiny_gguf: Path, tiny_model: Any, heard: Any) -> None:
    loaded = load_causal_lm(str(tiny_gguf), "float32", progress=heard)
    embedding = loaded.model.get_input_embeddings().weight
    torch.testing.assert_close(embedding, tiny_model.get_input_embeddings().weight, atol=2e-3, rtol=0)
    assert loaded.model.config.num_hidden_layers == 2 and loaded.eos_ids == {2} and loaded.text.uses_template(raw=False)
    assert [message.split()[0] for message, _ in heard.told] == ["Unpacking", "Loading"]
    assert loaded.warnings == ()


@pytest.mark.slow
def test_the_copy_is_made_once_and_again_when_the_file_changes(tiny_gguf: Path, own_cache: Path, heard: Any) -> None:
    def load_fresh() -> list[str]:
        heard.told.clear()
        prepare(str(tiny_gguf), heard)
        return [message.split()[0] for message, _ in heard.told]

    assert load_fresh() == ["Unpacking"]
    assert load_fresh() == []
    os.utime(tiny_gguf, (1, 1))
    assert load_fresh() == ["Unpacking"]
    assert len(list((own_cache / "models").iterdir())) == 1


@pytest.mark.spread(1)
@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "specviz.json"])
def test_a_damaged_copy_is_made_again(file: str, tiny_gguf: Path, own_cache: Path) -> None:
    folder = prepare(str(tiny_gguf))
    whole = (folder / file).stat().st_size
    (folder / file).write_bytes((folder / file).read_bytes()[: whole // 2])
    prepare(str(tiny_gguf))
    assert (folder / file).stat().st_size == whole


def test_an_interrupted_copy_is_no_copy(tiny_gguf: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(copies, "_write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(str(tiny_gguf))
    assert list((own_cache / "models").iterdir()) == []
    assert (prepare(str(tiny_gguf)) / "model.safetensors").exists()


def test_smollm_text_is_cut_as_smollm_cuts_it(tiny_gguf: Path) -> None:
    """Blanks in front of a number stay together; GPT-2's rule alone would give the last one to the number."""
    loaded = load_causal_lm(str(tiny_gguf), "float32")
    splitter = loaded.tokenizer.backend_tokenizer.pre_tokenizer
    assert [piece for piece, _ in splitter.pre_tokenize_str("x  12\n\n1. a")] == [
        "x", "ĠĠ", "1", "2", "ĊĊ", "1", ".", "Ġa"
    ]  # fmt: skip


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("kind", "stored"),
    [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16), ("Q4_1", torch.bfloat16)],
)
def test_floats_keep_their_precision_in_the_copy(
    kind: str, stored: torch.dtype, tmp_path: Path, byte_level: Any, tiny_model: Any
) -> None:
    file = write_gguf(tmp_path / "a.gguf", tiny_model, byte_level, "llama", kind=gguf.GGMLQuantizationType[kind])
    folder = prepare(str(file))
    with safe_open(folder / "model.safetensors", "pt") as opened:
        assert opened.get_tensor("model.embed_tokens.weight").dtype == stored


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_what_is_no_gguf_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ModelUnavailable, match=r"bad\.gguf is damaged or no GGUF"):
        load_causal_lm(str(tmp_path / "bad.gguf"), "float32")


def test_a_truncated_gguf_is_refused_by_name(tiny_gguf: Path) -> None:
    tiny_gguf.write_bytes(tiny_gguf.read_bytes()[:-5000])
    with pytest.raises(ModelUnavailable, match=r"tiny\.gguf"):
        load_causal_lm(str(tiny_gguf), "float32")
