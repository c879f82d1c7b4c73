"""Layers in oneDNN's layout: which are packed, and that a packed model gives what the plain one gives."""

from __future__ import annotations

import copy

import pytest
import torch

from specviz.models import packing
from specviz.models.packing import PackedLinear, pack, packs
from tests.support.tiny.text import tiny_llama


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_model_gives_what_the_plain_one_gives_and_so_do_its_gradients(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_bfloat16_is_packed_only_where_the_processor_multiplies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    able = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for native in (False, True):
        monkeypatch.setattr(packing, "cpu_has_bfloat16", lambda native=native: native)
        assert packs(torch.ones(2, 2, dtype=torch.bfloat16)) == (native and able and packs(torch.ones(2, 2)))
    assert not packs(torch.ones(2, 2, dtype=torch.float64))


def test_a_layout_that_computes_wrongly_here_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(dtype=torch.float32)
    kinds = [type(module) for module in model.modules()]
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: x.new_zeros(*x.shape[:-1], self.out_features))
    assert not pack(model)
    assert [type(module) for module in model.modules()] == kinds


def test_a_part_in_another_number_format_stays_plain() -> None:
    model = tiny_llama(dtype=torch.float32)
    model.model.layers[1].mlp.double()
    pack(model)
    assert type(model.model.layers[1].mlp.up_proj) is torch.nn.Linear
