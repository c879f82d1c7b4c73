"""A draft model's layers on several devices: the same drafts, through the code that GPUs run."""

import torch

from specviz.acceptance.exact import Rejection
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Composition, SingleDrafter
from specviz.engine.tree import chain
from specviz.methods.easyspec.layer_parallel import FusedFuzzy, GroupedDrafter, grouped_model
from specviz.models.heads.intermediate_models import lean_copy, read
from tests.support.tiny.text import decode
from tests.support.worlds.text import DEEP, PROMPT, WARPS, deep_target

TWO = [torch.device("cpu"), torch.device("cpu", 0)]
"""One processor under two names: what runs over two devices must go through the same code."""


def test_layers_on_two_devices_give_the_same_drafts():
    target = deep_target()
    together = lean_copy(target, group=4)
    apart = lean_copy(target, group=4, devices=TWO)
    assert {layer.device for layer in apart.layers} == set(TWO)
    assert not apart._joint and together._joint, "on two devices there is no one call for all layers"
    first, second = FusedFuzzy(together, 48, True), FusedFuzzy(apart, 48, True)
    for fuzzy in (False, True):
        for ids in (PROMPT, [4], [7], [1]):
            assert torch.allclose(first.extend(ids, fuzzy), second.extend(ids, fuzzy), atol=1e-9)
    assert torch.allclose(first.entries(0, 20), second.entries(0, 20), atol=1e-9)
    warp, texts = WARPS["warm"], []
    for decoder in (together, apart):
        model = grouped_model("itself", decoder, target)
        composition = Composition(SingleDrafter(GroupedDrafter(model), Sampled(chain(3))), Rejection())
        run = decode(target, composition, PROMPT, 40, warp, 4)
        texts.append(run.ids)
        devices = run.steps[1].notes[0].data["devices"]
        assert devices == ([] if decoder is together else ["cpu", "cpu:0"] * 3)
    assert texts[0] == texts[1]


def test_layers_of_a_model_over_several_devices_stay_where_they_are():
    target = deep_target()
    target.model.model.layers[1].to("meta")
    assert [layer.device.type for layer in read(target)[1]] == ["cpu", "meta", *["cpu"] * (DEEP - 2)]
    assert [layer.device for layer in read(deep_target(), TWO)[1]] == TWO * (DEEP // 2)
