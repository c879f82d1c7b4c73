"""The kernel for grouped heads gives transformers' own numbers, and copies no keys and values for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.integrations import sdpa_attention

from specviz.engine.attention import GROUPED
from tests.support.tiny.text import tiny_llama


def logits(kernel: str, rows: int, dtype: torch.dtype) -> Tensor:
    model = tiny_llama(dtype=dtype)
    assert model.config.num_attention_heads > model.config.num_key_value_heads
    model.set_attn_implementation(kernel)
    mask = torch.rand(rows, rows, generator=torch.Generator().manual_seed(1)) > 0.5
    mask = mask.tril() | torch.eye(rows, dtype=torch.bool)
    with torch.inference_mode():
        return model(torch.arange(rows)[None] % 13, attention_mask=mask[None, None], use_cache=False).logits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_it_gives_what_transformers_own_kernel_gives(rows: int, dtype: torch.dtype) -> None:
    torch.testing.assert_close(logits(GROUPED, rows, dtype), logits("sdpa", rows, dtype))


def test_no_keys_and_values_are_copied_under_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(*_: object) -> Tensor:
        raise AssertionError("keys and values were copied for every query head")

    monkeypatch.setattr(sdpa_attention, "repeat_kv", copied)
    logits(GROUPED, 9, torch.float32)
    with pytest.raises(AssertionError, match="copied"):
        logits("sdpa", 9, torch.float32)
