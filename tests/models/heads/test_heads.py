"""Networks trained for a target: refused where they do not belong, read once, laid out without changing what they say."""

import gc
import os
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from specviz.drafting.networks.eagle_head import EagleHead, EagleRuntime
from specviz.errors import ModelUnavailable, SpecvizError
from specviz.models.heads import heads
from specviz.targets.text import TextTarget
from tests.support.tiny.networks import block_fill
from tests.support.tiny.text import tiny_llama
from tests.support.worlds.feature import tiny_net


@dataclass(frozen=True)
class Loaded:
    name: str = "tiny"
    tokenizer_hash: str = "words"


@pytest.fixture
def target():
    return TextTarget(tiny_llama(dtype=torch.float32), "tiny", [])


@pytest.fixture
def folder(tmp_path, monkeypatch, target):
    monkeypatch.setattr(heads, "WEIGHTS", tmp_path)
    tiny_net(target.model, True, 20).save(tmp_path / "eagle3.safetensors", {"tokenizer_hash": "words"})
    return tmp_path


def test_what_ships_is_read_once_and_shared(folder, target):
    first = heads.load_heads("eagle3", None, Loaded(), target)
    assert isinstance(first, EagleHead) and first is heads.load_heads("eagle3", "eagle3", Loaded(), target)
    ready = heads.drafting_heads("eagle3", "", Loaded(), target)
    assert isinstance(ready, EagleRuntime) and ready is heads.drafting_heads("eagle3", None, Loaded(), target)
    assert ready.config.taps == first.config.taps
    other = TextTarget(tiny_llama(dtype=torch.float32, seed=1), "other", [])
    own = heads.load_heads("eagle3", None, Loaded(), other)
    assert own is not first and torch.equal(own.embedding, other.model.get_input_embeddings().weight)
    gone = weakref.ref(other.model), weakref.ref(own)
    del other, own
    gc.collect()
    assert [one() for one in gone] == [None, None], "a network goes with its target"


def test_weights_made_anew_are_read_anew(folder, target):
    first = heads.load_heads("eagle3", None, Loaded(), target)
    path = folder / "eagle3.safetensors"
    tiny_net(target.model, True, 20, seed=9).save(path, {"tokenizer_hash": "words"})
    os.utime(path, ns=(1, 1))
    again = heads.load_heads("eagle3", None, Loaded(), target)
    assert not torch.equal(first.fc.weight, again.fc.weight)
    assert heads.drafting_heads("eagle3", None, Loaded(), target) is not None


def test_the_included_dflash_is_dspark_without_its_corrections(tmp_path, monkeypatch, target):
    monkeypatch.setattr(heads, "WEIGHTS", tmp_path)
    block_fill(target, "dspark").save(tmp_path / "dspark.safetensors", {"tokenizer_hash": "words"})
    dspark, dflash = (heads.drafting_heads(kind, None, Loaded(), target) for kind in ("dspark", "dflash"))
    assert dflash is heads.drafting_heads("dflash", "dflash", Loaded(), target)
    assert dspark.corrects and dspark.config.confidence and not dflash.corrects and not dflash.config.confidence
    states, tokens = torch.randn(6, 2 * target.config.hidden_size), torch.arange(6)
    outputs = [one.blocks(one.fuse(states), tokens, torch.tensor([5])) for one in (dspark, dflash)]
    assert torch.equal(*outputs) and torch.equal(*(one.logits(outputs[0]) for one in (dspark, dflash)))


def test_another_tokenizer_another_width_and_a_missing_file_are_told(folder, target):
    with pytest.raises(ModelUnavailable, match="llama has different ones. Choose that target"):
        heads.load_heads("eagle3", None, Loaded("llama", "other words"), target)
    with pytest.raises(ModelUnavailable, match="python -m specviz train eagle"):
        heads.load_heads("eagle", None, Loaded(), target)
    wider = TextTarget(tiny_llama(dtype=torch.float32, vocab=60), "wider", [])
    with pytest.raises(SpecvizError, match="Choose"):
        heads.load_heads("eagle3", None, Loaded(), wider)


@pytest.mark.parametrize("where", ["cuda:1", "cpu"])
def test_a_named_draft_is_loaded_on_the_device_of_its_target(where, monkeypatch):
    class Asked(Exception):
        """A loader was called."""

    def load(*asked):
        raise Asked(*asked)

    monkeypatch.setattr(heads, "load_causal_lm", load)
    where_it_is = SimpleNamespace(number_format=torch.bfloat16, device=torch.device(where))
    with pytest.raises(Asked) as asked:
        heads.named_draft("smaller", Loaded(), where_it_is, heads.no_progress)
    assert asked.value.args[:3] == ("smaller", "bfloat16", where)


def test_heads_are_ours_unless_others_are_named(tmp_path):
    assert all(heads.is_shipped(draft) for draft in (None, "", "eagle3", "medusa", "gto", "arms"))
    assert not heads.is_shipped(str(tmp_path)) and not heads.is_shipped("someone/medusa-heads")
