"""Model folders whose files lie or are damaged: they run, or one sentence says what is wrong. Seeded lies, and known ones."""

import json
import random
import shutil
import struct

import pytest
import torch
from safetensors.torch import save_file

from specviz.errors import ModelUnavailable, SpecvizError
from specviz.models.cache import MODELS
from specviz.models.hub.prepare import modality_of
from specviz.models.text.load import load_causal_lm
from tests.support.tiny.damage import damage, lie_in_header

VALUES = (
    None, 0, -1, 1.5, "x", True, [], {}, 10**6, 10**9, 2**31, 2**63, 10**30, 1e308, float("nan"), [1] * 1000, {"a": 1}, "gpt2",
)  # fmt: skip
CONFIG = (
    "num_hidden_layers hidden_size vocab_size max_position_embeddings rope_scaling rope_parameters architectures model_type "
    "num_attention_heads num_key_value_heads quantization_config auto_map intermediate_size layer_types sliding_window head_dim "
    "eos_token_id tie_word_embeddings hidden_act rms_norm_eps torch_dtype dtype text_config"
).split()
TEMPLATES = (
    "{{", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{% for i in range(10**9) %}x{% endfor %}", "{{ 1 // 0 }}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "{{ lipsum.__globals__['os'].popen('id').read() }}", "{{ messages + 1 }}",
)  # fmt: skip


def _json(folder, file, changed):
    (folder / file).write_text(
        json.dumps({**json.loads((folder / file).read_text(encoding="utf-8")), **changed}), encoding="utf-8"
    )


def _mutations():
    """The kind, its place and its value."""
    header = ("shape", [10**9, 10**9]), ("shape", [-1, 5]), ("dtype", "F128"), ("data_offsets", [0, 2**63]), ("shape", "x")
    tokenizer = [
        (name, value) for name in ("model", "pre_tokenizer", "decoder", "added_tokens", "normalizer") for value in VALUES
    ]
    settings = [
        (name, value) for name in ("chat_template", "tokenizer_class", "model_max_length", "eos_token") for value in VALUES
    ]
    return [
        *(("config.json", name, value) for name in CONFIG for value in VALUES),
        *(("tokenizer.json", *change) for change in tokenizer),
        *(("tokenizer_config.json", *change) for change in settings),
        *(("generation_config.json", "eos_token_id", value) for value in VALUES),
        *(("header", *lie) for lie in header),
        *(("length", "", size) for size in (0, 1, 2**63, 2**64 - 1, 10**12)),
        *(("bytes", name, seed) for name in ("tokenizer.json", "model.safetensors", "config.json") for seed in range(8)),
        *(("template", "", template) for template in TEMPLATES),
        *(("deep", name, b"[" * 100_000) for name in ("config.json", "tokenizer.json")),
        *(("deep", name, b"") for name in ("config.json", "tokenizer.json", "model.safetensors")),
    ]


def _mutate(folder, kind, name, value):
    weights = folder / "model.safetensors"
    if kind.endswith(".json"):
        _json(folder, kind, {name: value})
    elif kind == "header":
        lie_in_header(weights, name, value)
    elif kind == "length":
        weights.write_bytes(struct.pack("<Q", value) + weights.read_bytes()[8:])
    elif kind == "bytes":
        damage(folder / name, 20, random.Random(value), 2000)
    elif kind == "template":
        _json(folder, "tokenizer_config.json", {"chat_template": value})
        (folder / "chat_template.jinja").write_text(value, encoding="utf-8")
    else:
        (folder / name).write_bytes(value)


def _used(folder):
    """Open a folder and read a prompt with it, as a run does. Returns the refusal, "" where there was none."""
    try:
        modality_of(str(folder))
        loaded = load_causal_lm(str(folder), "float32")
        loaded.text.decode(loaded.text.encode("hello there"))
    except SpecvizError as refusal:
        assert "\n" not in str(refusal) and len(str(refusal)) < 900
        return str(refusal)
    finally:
        MODELS.release()
    return ""


def _copies(folder, tmp_path):
    while True:
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        yield shutil.copytree(folder, tmp_path / "x")


@pytest.mark.parametrize("share", [0.01, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_lie_in_any_file_is_met_with_a_sentence(share, tiny_folder, tmp_path):
    (tiny_folder / "generation_config.json").write_text("{}", encoding="utf-8")
    lies = _mutations()
    drawn = random.Random(3).sample(lies, int(share * len(lies)))
    for folder, lie in zip(_copies(tiny_folder, tmp_path), drawn, strict=False):
        _mutate(folder, *lie)
        _used(folder)


@pytest.mark.spread(3)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_that_fails_is_named(template, tiny_folder):
    _mutate(tiny_folder, "template", "", template)
    with pytest.raises(ModelUnavailable, match="chat template fails"):
        load_causal_lm(str(tiny_folder), "float32").text.encode("hello")


@pytest.mark.parametrize("layers", [10**6, 2**31, 2**63, 1e308])
def test_more_layers_than_tensors_are_refused_before_they_are_built(layers, tiny_folder):
    _json(tiny_folder, "config.json", {"num_hidden_layers": layers})
    assert "sets num_hidden_layers" in _used(tiny_folder)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("field", ["eos_token_id", "pad_token_id", "image_token_index"])
def test_ids_that_are_no_whole_numbers_are_refused(field, file, tiny_folder):
    (tiny_folder / "generation_config.json").write_text("{}", encoding="utf-8")
    for value in (1.5, "x", True, {}, {"a": 1}, 1e308, float("nan"), float("inf"), [2, None], [2.5]):
        _json(tiny_folder, file, {field: value})
        assert f"The {file} of" in (said := _used(tiny_folder)) and f"sets {field}" in said and "not a whole number" in said


def test_damage_in_what_was_fetched_is_fetched_again_and_a_users_own_folder_is_not_to_be_deleted(tiny_folder, own_cache):
    weights = tiny_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "damaged" in (said := _used(tiny_folder)) and "Download the model again" in said and "Delete" not in said
    fetched = shutil.copytree(tiny_folder, own_cache / "models" / "tiny")
    assert "Delete that folder and try again" in _used(fetched)


def test_a_git_lfs_pointer_is_named(tiny_folder):
    (tiny_folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n")
    assert "model.safetensors is a Git LFS pointer" in (said := _used(tiny_folder)) and "git lfs pull" in said


def test_an_adapter_beside_a_whole_model_is_a_warning(tiny_folder):
    save_file({"base_model.model.lora_A.weight": torch.zeros(2, 2)}, tiny_folder / "adapter_model.safetensors")
    assert "holds a LoRA adapter" in " ".join(load_causal_lm(str(tiny_folder), "float32").warnings)
