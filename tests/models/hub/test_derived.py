"""Hybrids made of a fetched model: one that changes nothing is its base, and what a file holds comes back in its folder."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from specviz.drafting.networks.weights import write_weights
from specviz.errors import ModelUnavailable
from specviz.models.hub import derived
from specviz.targets.hybrid import HybridTarget
from specviz.training.optimizer import LowRank
from tests.support.tiny.hybrid import SHAPE
from tests.support.tiny.shelf import spell
from tests.support.tiny.text import tiny_llama

IDS = torch.tensor([[1, 7, 3, 20, 9, 9, 4, 30, 2, 11]])


def test_a_hybrid_whose_layers_all_attend_is_its_base():
    base = tiny_llama()
    made = derived.hybrid(base, {**SHAPE, "attn_layer_indices": [0, 1]})
    assert torch.equal(made(IDS).logits, base(IDS).logits)


@pytest.fixture
def unpacked(tmp_path):
    """A base, and a function that packs learned tensors and unpacks the hybrid that they make of it."""
    folder = tmp_path / "base"
    base = tiny_llama(dtype=torch.float32, vocab=spell().get_vocab_size())
    base.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=spell()).save_pretrained(folder)

    def unpack(tensors):
        file, made = tmp_path / "own.safetensors", tmp_path / "made"
        write_weights(file, tensors, {"config": json.dumps(SHAPE)})
        derived.unpack_derived(file, folder, made)
        assert PreTrainedTokenizerFast.from_pretrained(made).get_vocab() == spell().get_vocab()
        return AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)

    return base, unpack


def test_a_hybrid_comes_back_with_the_change_that_was_learned(unpacked):
    base, unpack = unpacked
    made = derived.hybrid(base, SHAPE)
    before, change = made(IDS).logits, LowRank(derived.mixers(made), 4, rest=True)
    torch.manual_seed(0)
    with torch.no_grad():
        for value in change.factors.values():
            value.add_(0.1 * torch.randn_like(value))
    change.put()
    back = unpack(change.factors)
    assert len(HybridTarget(back, "tiny", ()).mixers) == 1
    with torch.no_grad():
        apart = [float((back(IDS).logits - logits).norm() / logits.norm()) for logits in (made(IDS).logits, before)]
    assert apart[0] < 0.05 < apart[1], "but for what bytes and bfloat16 round"
    less = {name: value for name, value in change.factors.items() if "conv1d" not in name}
    for wrong in ({}, less, {**change.factors, "1.unknown": torch.zeros(3)}, {**change.factors, "1.A_log": torch.zeros(3)}):
        with pytest.raises(ModelUnavailable, match="does not hold this model"):
            unpack(wrong)
