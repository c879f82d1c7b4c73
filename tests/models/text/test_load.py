"""A model's name becomes a model: what is loaded, what is refused, what is reported."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from accelerate import hooks

from specviz.errors import ModelUnavailable, OutOfMemory
from specviz.models import cache
from specviz.models.text import load
from specviz.models.text.load import load_causal_lm


def test_a_folder_loads_ready_to_run(tiny_folder, tiny_model, heard):
    loaded = load_causal_lm(str(tiny_folder), "float64", "cpu", heard)
    assert not loaded.model.training and not any(weight.requires_grad for weight in loaded.model.parameters())
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float64} == {loaded.dtype}
    ids = torch.tensor([loaded.text.encode("the quick fox")])
    with torch.inference_mode():
        ours, theirs = loaded.model(ids).logits, tiny_model(ids).logits
    torch.testing.assert_close(ours.float(), theirs, atol=1e-5, rtol=1e-4)
    assert heard.told == [(f"Loading {tiny_folder} in float64 on cpu", None)]
    assert loaded.warnings == ()
    assert (loaded.text.context_length, loaded.text.rows) == (128, 352)
    assert loaded.eos_ids == {0, 2}, "0 from the generation config, 2 from the tokenizer and the chat template"


def test_the_same_model_is_loaded_once_for_each_number_format(tiny_folder):
    first = load_causal_lm(str(tiny_folder), "float32")
    assert load_causal_lm(str(tiny_folder), "float32") is first
    assert load_causal_lm(str(tiny_folder), "float64") is not first
    cache.MODELS.release(str(tiny_folder))
    assert load_causal_lm(str(tiny_folder), "float32") is not first


def test_two_users_can_load_different_models_at_once(tiny_folder):
    formats = ["float64", "float32", "bfloat16", "float16"]
    with ThreadPoolExecutor(4) as users:
        loaded = list(users.map(lambda name: load_causal_lm(str(tiny_folder), name, "cpu"), formats))
    for one, name in zip(loaded, formats, strict=True):
        weights = list(one.model.parameters())
        assert {str(weight.dtype) for weight in weights} == {f"torch.{name}"}
        assert all(weight.device.type == "cpu" and weight.isfinite().all() for weight in weights)
    assert torch.get_default_dtype() == torch.float32


def test_weights_only_as_pickles_are_refused(tiny_folder, tiny_model):
    torch.save(tiny_model.state_dict(), tiny_folder / "pytorch_model.bin")
    (tiny_folder / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="pickles.*safetensors"):
        load_causal_lm(str(tiny_folder), "float32")


def test_code_from_a_repository_is_never_run(tiny_folder, capsys):
    config = json.loads((tiny_folder / "config.json").read_text())
    config.update(model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"})
    (tiny_folder / "config.json").write_text(json.dumps(config))
    (tiny_folder / "own.py").write_text("print('this ran')\nclass Own: pass\nclass OwnModel: pass\n")
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        load_causal_lm(str(tiny_folder), "float32")
    assert "this ran" not in capsys.readouterr().out


def with_layers(folder, layers):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return load_causal_lm(str(folder), "float32")


def test_missing_weights_are_refused_and_those_that_have_no_place_are_a_warning(tiny_folder):
    with pytest.raises(ModelUnavailable, match="lacks 9 of its weights"):
        with_layers(tiny_folder, 3)
    assert "9 weights" in with_layers(tiny_folder, 1).warnings[0]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("model.safetensors", "no safetensors weights"),
        ("config.json", "no config"),
        ("tokenizer.json", "holds no tokenizer.json. Put the"),
    ],
)
def test_an_incomplete_folder_is_refused(missing, said, tiny_folder):
    for file in tiny_folder.glob("tokenizer*" if missing.startswith("tokenizer") else missing):
        file.unlink()
    with pytest.raises(ModelUnavailable, match=said):
        load_causal_lm(str(tiny_folder), "float32")


def test_a_folder_of_gguf_files_asks_for_one(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable, match="path of the one you want"):
        load_causal_lm(str(tmp_path), "float32")


def test_a_model_that_writes_no_text_is_refused(tiny_folder):
    (tiny_folder / "config.json").write_text(json.dumps({"model_type": "vit", "hidden_size": 16}))
    with pytest.raises(ModelUnavailable, match="vit model, which generates no text"):
        load_causal_lm(str(tiny_folder), "float32")


@pytest.mark.parametrize(
    "problem",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("can't allocate memory: 9 bytes")],
)
def test_a_model_too_big_for_the_machine_is_said(problem, tiny_folder, monkeypatch):
    def full(*_, **__):
        raise problem

    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", full)
    with pytest.raises(OutOfMemory, match="smaller model"):
        load_causal_lm(str(tiny_folder), "float32")


def test_half_precision_on_a_cpu_without_it_is_a_warning(tiny_folder, monkeypatch):
    monkeypatch.setattr(load, "cpu_has_bfloat16", lambda: False)
    assert "much slower than in float32" in load_causal_lm(str(tiny_folder), "bfloat16", "cpu").warnings[0]


def test_a_model_over_several_devices_is_entered_and_left_on_the_last(tiny_folder, monkeypatch, heard):
    """Two names of one processor stand for two GPUs; where weights lie on it cannot be told apart, where work goes can."""
    monkeypatch.setattr(hooks, "set_module_tensor_to_device", lambda *given, **more: None)
    whole, spread = (load_causal_lm(str(tiny_folder), "float64", place, heard) for place in ("cpu", "cpu:0,cpu:1"))
    assert heard.told[-1][0] == f"Loading {tiny_folder} in float64 on cpu:0, cpu:1"
    assert spread.device == torch.device("cpu", 1)
    assert spread.model.hf_device_map["model.layers.0"] == "cpu:0" and spread.model.hf_device_map["lm_head"] == "cpu:1"
    assert load_causal_lm(str(tiny_folder), "float64", "cpu:0,cpu:1") is spread is not whole
    ids = torch.tensor([whole.text.encode("the quick fox")])
    with torch.inference_mode():
        assert torch.equal(whole.model(ids).logits, spread.model(ids).logits)
    with pytest.raises(ModelUnavailable, match="2 layers cannot be spread over 3 devices"):
        load_causal_lm(str(tiny_folder), "float64", "cpu:0,cpu:1,cpu:2")
