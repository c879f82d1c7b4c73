"""Layers in oneDNN's layout: which are packed, and that a packed model gives what the plain one gives."""

import copy

import pytest
import torch

from specviz.errors import BadInput, ModelUnavailable
from specviz.models import packing
from specviz.models.heads.intermediate_models import lean_copy
from specviz.models.packing import PackedLinear, check_int8, eight_bits, pack, pack_int8, packs
from specviz.models.text.load import load_causal_lm
from specviz.pipeline.request import Request
from specviz.pipeline.runner import prepare
from specviz.targets.text import TextTarget
from tests.support.tiny.text import int8_llama, tiny_llama

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_model_gives_what_the_plain_one_gives_and_so_do_its_gradients(dtype, monkeypatch):
    monkeypatch.setattr(packing, "cpu_has_bfloat16", lambda: True)
    model = tiny_llama(dtype=dtype)
    plain = copy.deepcopy(model)
    if not pack(model):
        pytest.skip("this processor's torch has no such layout")
    assert isinstance(model.base_model.layers[0].mlp.down_proj, PackedLinear)
    found = []
    for network in (model, plain):
        embedded = plain.get_input_embeddings().weight[:12].clone()[None].requires_grad_()
        logits = network(inputs_embeds=embedded).logits.float()
        logits.square().sum().backward()
        with torch.inference_mode():
            found.append((logits, embedded.grad.float(), network(torch.arange(12)[None]).logits.float()))
    for ours, wanted in zip(*found, strict=True):
        assert (ours - wanted).norm() < (1e-5 if dtype == torch.float32 else 0.03) * wanted.norm()


def test_bfloat16_is_packed_only_where_the_processor_multiplies_in_it(monkeypatch):
    able = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for native in (False, True):
        monkeypatch.setattr(packing, "cpu_has_bfloat16", lambda native=native: native)
        assert packs(torch.ones(2, 2, dtype=torch.bfloat16)) == (native and able and packs(torch.ones(2, 2)))
    assert not packs(torch.ones(2, 2, dtype=torch.float64))


def test_a_layout_that_computes_wrongly_here_is_not_used(monkeypatch):
    model = tiny_llama(dtype=torch.float32)
    kinds = [type(module) for module in model.modules()]
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: x.new_zeros(*x.shape[:-1], self.out_features))
    assert not pack(model)
    assert [type(module) for module in model.modules()] == kinds


def test_a_part_in_another_number_format_stays_plain():
    model = tiny_llama(dtype=torch.float32)
    model.model.layers[1].mlp.double()
    pack(model)
    assert type(model.model.layers[1].mlp.up_proj) is torch.nn.Linear


@pytest.mark.parametrize(("columns", "outputs"), [(96, 64), (1536, 2048), (896, 4864)])
def test_a_row_in_int8_is_the_same_to_the_bit_whatever_stands_beside_it(columns, outputs):
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(count, columns, generator=generator) for count in (outputs, 24))
    rows[3] *= 1000  # a row's scale is its own
    product = eight_bits(weight)
    whole = product(rows)
    assert (whole - rows @ weight.T).norm() < packing.INT8_ERROR * (rows @ weight.T).norm()
    for start, end in ((0, 1), (3, 4), (2, 7), (8, 24)):
        assert torch.equal(product(rows[start:end]), whole[start:end])


def test_a_model_in_int8_writes_nearly_the_same_logits_in_a_quarter_of_the_bytes():
    plain, small = tiny_llama(dtype=torch.float32), int8_llama()
    ids = torch.arange(12)[None]
    with torch.inference_mode():
        wanted, found = plain(ids).logits, small(ids).logits
    assert (wanted - found).norm() < 0.15 * wanted.norm()
    table, ours = plain.get_input_embeddings().weight, small.get_input_embeddings()
    assert ours.integers.dtype == torch.int8 and (ours.weight - table).abs().max() < 0.01 * table.abs().max()


def test_int8_is_refused_where_it_cannot_run(monkeypatch):
    with pytest.raises(ModelUnavailable, match="only on a CPU"):
        check_int8(torch.device("cuda"))
    with pytest.raises(BadInput, match="Only text models run in int8"):
        prepare(Request("autoregressive", "a face", "emoji-64", dtype="int8"))
    convolved = tiny_llama()
    convolved.model.layers[0].mlp.mixing = torch.nn.Conv1d(4, 4, 3)
    with pytest.raises(ModelUnavailable, match="mlp.mixing.weight belongs to no plain linear layer"):
        pack_int8(convolved, "tiny")
    with pytest.raises(ModelUnavailable, match="its matrices are stored only in int8"):
        lean_copy(TextTarget(int8_llama(), "tiny", ()))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    with pytest.raises(ModelUnavailable, match="no fast int8 matrix products"):
        load_causal_lm("smollm2-135m-instruct", "int8", "cpu")
