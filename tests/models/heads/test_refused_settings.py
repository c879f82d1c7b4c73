"""Published heads whose settings mean other arithmetic than ours, or do not fit, are refused by the setting's name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from specviz.errors import ModelUnavailable
from specviz.models.heads.published import read
from specviz.models.hub.published import open_repository
from tests.support.referee import stored_heads
from tests.support.tiny import mtp
from tests.support.tiny.published_heads import CONFIG, NARROW, feature_tensors, narrow_tensors, opened, target

TABLE = tomllib.loads(Path(__file__).with_name("refused.toml").read_text("utf-8"))
CASES = [(heads, case) for heads, cases in TABLE.items() for case in cases]


def read_with(heads: str, config: dict[str, Any], folder: Path) -> Any:
    """Read heads of this kind with these settings changed."""
    if heads == "eagle3":
        return read("eagle3", opened(folder, feature_tensors(), {**CONFIG, **config}), target())
    if heads == "eagle":
        return read("eagle", opened(folder, narrow_tensors(), {**NARROW, **config}), target())
    if heads == "mtp":
        one = mtp.made("qwen3_5")
        return read("eagle", open_repository(str(mtp.stored(folder, one, **config))), one.fit)
    if heads == "layer":
        config = {"transformer_layer_config": {**stored_heads.HEADS["llama"]["config"]["transformer_layer_config"], **config}}
    return stored_heads.head_of(stored_heads.stored(folder, "llama", config))


@pytest.mark.spread(6)
@pytest.mark.parametrize(("heads", "case"), CASES, ids=[f"{heads} {case['said']}" for heads, case in CASES])
def test_a_setting_is_refused_for_its_own_reason(tmp_path: Path, heads: str, case: dict[str, Any]) -> None:
    config = case.get("set", {}) | dict.fromkeys(case.get("unset", ()))
    with pytest.raises(ModelUnavailable, match=case["said"]) as refused:
        read_with(heads, config, tmp_path)
    assert str(refused.value).endswith(".")
