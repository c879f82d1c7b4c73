"""Draft models: on the very device of their target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specviz.models.heads import drafts


class Asked(Exception):
    """A loader was called."""


@pytest.mark.parametrize("where", ["cuda:1", "cuda:0", "cpu"])
def test_a_named_draft_is_loaded_on_the_device_of_its_target(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, dtype: str, device: str, progress: Any) -> Any:
        raise Asked(name, dtype, device)

    monkeypatch.setattr(drafts, "load_causal_lm", load)
    target = SimpleNamespace(dtype=torch.bfloat16, device=torch.device(where))
    with pytest.raises(Asked) as asked:
        drafts.named_draft("smaller", None, target, None)
    assert asked.value.args == ("smaller", "bfloat16", where)
