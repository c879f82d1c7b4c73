"""Published heads whose settings or tensors mean other arithmetic than ours, or do not fit, are refused by name."""

import tomllib
from pathlib import Path

import pytest
import torch

from specviz.errors import ModelUnavailable
from specviz.models.heads.published import read
from specviz.models.hub.published import open_repository
from tests.support.referee import block_heads, stored_heads
from tests.support.tiny import mtp
from tests.support.tiny.published_heads import CONFIG, NARROW, feature_tensors, narrow_tensors, opened, parallel_tensors, target

TABLE = tomllib.loads(Path(__file__).with_name("refused.toml").read_text("utf-8"))
CASES = [(heads, case) for heads, cases in TABLE.items() for case in cases]
TINY = {
    "eagle3": (feature_tensors(), CONFIG),
    "eagle": (narrow_tensors(), NARROW),
    "medusa": (parallel_tensors(), {}),
}


def read_with(heads, case, folder):
    """Read heads of this kind with these settings and tensors changed; tensors are given by their shapes, or taken away."""
    config = case.get("set", {}) | dict.fromkeys(case.get("unset", ()))
    tensors = {name: torch.ones(shape) for name, shape in case.get("tensors", {}).items()}
    if heads in TINY:
        own = {name: value for name, value in TINY[heads][0].items() if name not in case.get("without", ())}
        return read(heads, opened(folder, {**own, **tensors}, {**TINY[heads][1], **config}), target())
    if heads == "mtp":
        one = mtp.made("qwen3_5")
        return read("eagle", open_repository(str(mtp.stored(folder, one, **config))), one.fit)
    if heads == "block":
        return block_heads.head_of(block_heads.stored(folder, case["name"], config, tensors))
    if heads == "layer":
        config = {"transformer_layer_config": {**stored_heads.HEADS["llama"]["config"]["transformer_layer_config"], **config}}
    return stored_heads.head_of(stored_heads.stored(folder, "llama", config))


@pytest.mark.spread(6)
@pytest.mark.parametrize(("heads", "case"), CASES, ids=[f"{heads} {case['said']}" for heads, case in CASES])
def test_a_setting_or_tensor_is_refused_for_its_own_reason(tmp_path, heads, case):
    with pytest.raises(ModelUnavailable, match=case["said"]) as refused:
        read_with(heads, case, tmp_path)
    assert str(refused.value).endswith((".", "anew", "target"))
