"""A GGUF file becomes safetensors once, with the model and the tokenizer it means."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open

from specviz.errors import ModelUnavailable
from specviz.models.hub import convert
from specviz.models.hub.prepare import prepare
from specviz.models.text.load import load_causal_lm

HEAD, LAYERS, WIDTH, HEADS, KV_HEADS, FEED = 16, 2, 64, 4, 2, 96


def _weights() -> dict[str, np.ndarray]:
    """A tiny Llama under llama.cpp's tensor names, every value exactly representable in bfloat16."""
    random = np.random.default_rng(0)
    shapes = {"token_embd.weight": (352, WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        shapes |= {f"{block}attn_norm.weight": (WIDTH,), f"{block}ffn_norm.weight": (WIDTH,)}
        shapes |= {f"{block}attn_q.weight": (WIDTH, WIDTH), f"{block}attn_output.weight": (WIDTH, WIDTH)}
        shapes |= {f"{block}attn_{kind}.weight": (HEAD * KV_HEADS, WIDTH) for kind in "kv"}
        shapes |= {f"{block}ffn_{kind}.weight": (FEED, WIDTH) for kind in ("gate", "up")}
        shapes |= {f"{block}ffn_down.weight": (WIDTH, FEED)}
    return {name: random.integers(-8, 9, shape).astype(np.float32) / 64 for name, shape in shapes.items()}


def write_gguf(file: Path, tokenizer: Any, splitter: str, kind: gguf.GGMLQuantizationType) -> Path:
    """A GGUF as llama.cpp writes it, its matrices stored as ``kind``."""
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(352)
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    words += [f"[PAD{place}]" for place in range(len(words), 352)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitter)
    writer.add_token_list(words)
    writer.add_token_types([3 if word.startswith(("<|", "[PAD")) else 1 for word in words])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(tokenizer.chat_template)
    for name, tensor in _weights().items():
        stored = kind if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(tensor, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def tiny_gguf(tmp_path: Path, byte_level: Any) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", byte_level, "smollm", gguf.GGMLQuantizationType.Q8_0)


def test_a_gguf_loads_as_the_model_it_holds(tiny_gguf: Path, heard: Any) -> None:
    loaded = load_causal_lm(str(tiny_gguf), "float32", progress=heard)
    embedding = loaded.model.get_input_embeddings().weight
    torch.testing.assert_close(embedding, torch.from_numpy(_weights()["token_embd.weight"]), atol=2e-3, rtol=0)
    assert loaded.model.config.num_hidden_layers == LAYERS and loaded.eos_ids == {2} and loaded.has_template
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
        patched.setattr(convert, "_write_manifest", interrupt)
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


def test_a_splitter_nobody_knows_is_a_warning(tmp_path: Path, byte_level: Any) -> None:
    file = write_gguf(tmp_path / "odd.gguf", byte_level, "homemade", gguf.GGMLQuantizationType.Q8_0)
    assert "'homemade'" in load_causal_lm(str(file), "float32").warnings[0]


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("kind", "stored"),
    [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16), ("Q4_1", torch.bfloat16)],
)
def test_floats_keep_their_precision_in_the_copy(kind: str, stored: torch.dtype, tmp_path: Path, byte_level: Any) -> None:
    folder = prepare(str(write_gguf(tmp_path / "a.gguf", byte_level, "gpt-2", gguf.GGMLQuantizationType[kind])))
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
