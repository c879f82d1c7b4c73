"""Draft models: on the very device of their target, and gone with it."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specviz.models.heads import drafts
from specviz.models.vision import vision_drafts
from specviz.targets.text import TextTarget
from tests.support.tiny.text import tiny_llama


class Asked(Exception):
    """A loader was called."""


@pytest.mark.parametrize("where", ["cuda:1", "cuda:0", "cpu"])
@pytest.mark.parametrize(("room", "named"), [(drafts, drafts.named_draft), (vision_drafts, vision_drafts._named)])
def test_a_named_draft_is_loaded_on_the_device_of_its_target(
    room: Any, named: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, dtype: str, device: str, progress: Any) -> Any:
        raise Asked(name, dtype, device)

    monkeypatch.setattr(room, "load_causal_lm", load)
    target = SimpleNamespace(dtype=torch.bfloat16, device=torch.device(where))
    with pytest.raises(Asked) as asked:
        named("smaller", None, target, None)
    assert asked.value.args == ("smaller", "bfloat16", where)


def test_the_shipped_draft_model_is_made_once_a_target_and_lets_it_go(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []

    def load(path: Any, shared: tuple[torch.Tensor], dtype: torch.dtype, device: torch.device) -> Any:
        made.append(shared[0])
        return torch.nn.Embedding.from_pretrained(shared[0].detach())

    monkeypatch.setattr(drafts.SmallLM, "load", load)
    monkeypatch.setattr(drafts, "_trained_for", lambda: "a hash")
    loaded = SimpleNamespace(tokenizer_hash="a hash", name="tiny")
    first, second = (TextTarget(tiny_llama(seed), "tiny", ()) for seed in (0, 1))
    one = drafts.shipped_small(loaded, first)
    assert drafts.shipped_small(loaded, second) is not one and drafts.shipped_small(loaded, first) is one
    assert len(made) == 2
    gone, small = weakref.ref(first.model), weakref.ref(one)
    del first, one
    made.clear()
    gc.collect()
    assert gone() is None and small() is None
