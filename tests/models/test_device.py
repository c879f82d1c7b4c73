"""Which device and number format a machine gets when nobody says."""

import pytest
import torch

from specviz.errors import BadInput, ModelUnavailable
from specviz.models import device


@pytest.fixture(autouse=True)
def fresh():
    device.cpu_has_bfloat16.cache_clear()


def _flags(monkeypatch, bfloat16, tiles, library):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: library)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)


@pytest.mark.parametrize(("bfloat16", "tiles"), [(True, False), (False, True)])
def test_a_cpu_with_the_instructions_computes_in_bfloat16(bfloat16, tiles, monkeypatch):
    _flags(monkeypatch, bfloat16, tiles, library=True)
    assert device.choose_dtype("auto", "cpu") == torch.bfloat16


def test_a_cpu_without_them_computes_in_float32(monkeypatch):
    _flags(monkeypatch, False, False, library=False)
    assert device.choose_dtype("auto", "cpu") == torch.float32


@pytest.mark.parametrize(
    ("machine", "expected"), [("aarch64", torch.bfloat16), ("x86_64", torch.float32), ("AMD64", torch.float32)]
)
def test_what_onednn_emulates_on_x86_does_not_count(machine, expected, monkeypatch):
    _flags(monkeypatch, False, False, library=True)
    monkeypatch.setattr(device.platform, "machine", lambda: machine)
    assert device.choose_dtype("auto", "cpu") == expected


@pytest.mark.parametrize(("capability", "expected"), [("AVX512", torch.int8), ("AVX2", torch.float32)])
def test_models_that_ask_for_it_run_in_int8_on_a_cpu_with_avx512(capability, expected, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(device, "cpu_has_bfloat16", lambda: False)
    assert device.format_of("qwen2.5-coder-1.5b-q4", "auto", torch.device("cpu")) == expected
    assert device.format_of("qwen2.5-coder-1.5b-q4", "bfloat16", torch.device("cpu")) == torch.bfloat16
    assert device.format_of("qwen2.5-coder-1.5b", "auto", torch.device("cpu")) == torch.float32


def test_the_users_word_goes_first():
    assert device.choose_dtype("float64", "cpu") == torch.float64
    assert device.choose_device("cpu") == torch.device("cpu")
    assert device.dtype_name(torch.bfloat16) == "bfloat16"


def test_cuda_is_chosen_where_it_is_and_its_lack_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert device.choose_device() == device.choose_device("cuda") == torch.device("cuda", 0), "a GPU has a number"
    assert device.choose_dtype("auto", "cuda") == torch.float16
    with pytest.raises(ModelUnavailable, match=r"1 CUDA device"):
        device.choose_device("cuda:3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.choose_device() == torch.device("cpu")
    with pytest.raises(ModelUnavailable, match="no CUDA device"):
        device.choose_device("cuda")


@pytest.mark.parametrize("wanted", ["tpu", "gpu", "cuda:x", ""])
def test_an_unknown_device_is_refused(wanted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(BadInput, match="choose auto"):
        device.choose_device(wanted)


def test_an_unknown_number_format_is_refused():
    with pytest.raises(BadInput, match="bfloat16"):
        device.choose_dtype("int4")
