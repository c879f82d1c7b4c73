"""A target over several devices by accelerate's map: the same text, entered and left on the last device, where the drafter is.

Two names of the one processor stand for two GPUs, so that the very hooks run that move tensors there.
"""

import pytest
import torch
from accelerate import dispatch_model, hooks

from specviz.engine.cache import KeyValues
from specviz.errors import BadInput, ModelUnavailable
from specviz.models.device import choose_devices
from specviz.models.text.load import device_map, enter_at
from specviz.targets.hybrid import HybridTarget
from specviz.targets.text import TextTarget
from specviz.targets.text_rows import TextRows
from tests.support.tiny.hybrid import hybrid
from tests.support.tiny.text import decode, tiny_llama
from tests.support.worlds.text import NUCLEUS, PROMPT, compose

TWO = (torch.device("cpu", 0), torch.device("cpu", 1))


@pytest.fixture(autouse=True)
def one_memory(monkeypatch):
    """Where weights lie cannot be told apart on one processor; where computing goes can."""
    monkeypatch.setattr(hooks, "set_module_tensor_to_device", lambda *given, **more: None)


def spread(model):
    placement = device_map(model.config, TWO)
    dispatched = dispatch_model(model, placement, skip_keys=list(model._skip_keys_device_placement))
    enter_at(dispatched, TWO[-1])
    return dispatched


def test_the_map_is_a_pipeline_that_begins_and_ends_on_the_last_device():
    placement = device_map(tiny_llama().config, TWO)
    layers = {name: place for name, place in placement.items() if ".layers." in name}
    assert layers == {"model.layers.0": "cpu:0", "model.layers.1": "cpu:1"}
    assert {place for name, place in placement.items() if name not in layers} == {"cpu:1"}
    assert {"model.embed_tokens", "model.norm", "lm_head"} <= set(placement)
    with pytest.raises(ModelUnavailable, match="2 layers cannot be spread over 3"):
        device_map(tiny_llama().config, [*TWO, torch.device("cpu", 2)])


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["autoregressive", "eagle3", "speculative_sampling"])
def test_a_spread_target_writes_the_text_of_a_whole_one(name):
    texts = []
    for model in (tiny_llama(), spread(tiny_llama())):
        target = TextTarget(model, "tiny", ())
        texts.append(decode(target, compose(name, {}, target, NUCLEUS), PROMPT, 60, NUCLEUS, 3).ids)
    assert texts[0] == texts[1]


def test_each_part_gets_its_inputs_where_it_lies(monkeypatch):
    moves = []
    model = spread(tiny_llama())
    names = {id(module): name for name, module in model.named_modules()}
    plain = hooks.AlignDevicesHook.pre_forward

    def watched(hook, module, *given, **more):
        moves.append((names[id(module)], str(hook.execution_device)))
        return plain(hook, module, *given, **more)

    monkeypatch.setattr(hooks.AlignDevicesHook, "pre_forward", watched)
    session = TextTarget(model, "tiny", ()).open(32, taps=(0, 1, 2))
    scored = session.prefill(PROMPT)
    assert [move for move in moves if move[0] in ("", "model.layers.0", "model.layers.1", "lm_head")] == [
        ("", "cpu:1"), ("model.layers.0", "cpu:0"), ("model.layers.1", "cpu:1"), ("lm_head", "cpu:1"),
    ]  # fmt: skip
    assert set(scored.hidden) == {0, 1, 2}


def test_keys_and_values_lie_with_their_layers():
    """Layers on different devices share no tensor, and keeping a path touches each device once."""
    cache = KeyValues([("full", 0), ("full", 1), ("full", 1)], 16)
    for layer in range(3):
        cache.cache.update(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4), layer)
    assert sorted(len(bank) for bank in cache._banks.values()) == [2, 4]


def test_a_graph_and_a_batch_are_refused_with_the_reason():
    model = spread(tiny_llama())
    with pytest.raises(BadInput, match=r"several devices \(cpu:1, cpu:0\), and a graph is captured on one"):
        TextTarget(model, "tiny", (), "graph")
    with pytest.raises(BadInput, match="rows of a batch share one"):
        TextRows(TextTarget(model, "tiny", ()), [20, 20])


def test_a_recurrent_target_takes_one_device():
    model = hybrid()
    model.hf_device_map = {"model.layers.0": "cpu:0", "model.layers.1": "cpu:1"}
    with pytest.raises(ModelUnavailable, match="name one device"):
        HybridTarget(model, "hybrid", ())


@pytest.mark.parametrize("away", ["disk", "cpu", "meta"])
def test_an_offloaded_model_is_refused(away, tmp_path):
    model = tiny_llama()
    model.hf_device_map = {"model.embed_tokens": 0, "model.layers": away, "lm_head": 0}
    with pytest.raises(ModelUnavailable, match=f"offloaded to the {away}.*name more devices"):
        TextTarget(model, "tiny", ())
    del model.hf_device_map
    model.model.layers[1].to("meta")
    with pytest.raises(ModelUnavailable, match="offloaded to the disk"):
        TextTarget(model, "tiny", ())


def test_devices_are_named_singly_in_a_list_or_all(monkeypatch):
    assert choose_devices("cpu:0,cpu:1") == TWO and choose_devices("cpu") == (torch.device("cpu"),)
    with pytest.raises(BadInput, match="twice"):
        choose_devices("cpu, cpu")
    with pytest.raises(ModelUnavailable, match="no CUDA device"):
        choose_devices("cuda:all")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert choose_devices("cuda:all") == tuple(torch.device("cuda", number) for number in range(3))
    assert choose_devices("cuda") == choose_devices("auto") == (torch.device("cuda", 2),)
    with pytest.raises(ModelUnavailable, match="no cuda:3"):
        choose_devices("cuda:0,cuda:3")
