"""The kernel for grouped heads gives transformers' own numbers, and copies no keys and values for it."""

from types import SimpleNamespace

import pytest
import torch
from transformers.integrations import sdpa_attention

from specviz.engine import attention
from specviz.engine.attention import GROUPED
from tests.support.tiny.text import tiny_llama


def logits(kernel, rows, dtype):
    model = tiny_llama(dtype=dtype)
    assert model.config.num_attention_heads > model.config.num_key_value_heads
    model.set_attn_implementation(kernel)
    mask = torch.rand(rows, rows, generator=torch.Generator().manual_seed(1)) > 0.5
    mask = mask.tril() | torch.eye(rows, dtype=torch.bool)
    with torch.inference_mode():
        return model(torch.arange(rows)[None] % 13, attention_mask=mask[None, None], use_cache=False).logits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_it_gives_what_transformers_own_kernel_gives(rows, dtype):
    torch.testing.assert_close(logits(GROUPED, rows, dtype), logits("sdpa", rows, dtype))


def test_no_keys_and_values_are_copied_under_a_mask(monkeypatch):
    def copied(*_):
        raise AssertionError("keys and values were copied for every query head")

    monkeypatch.setattr(sdpa_attention, "repeat_kv", copied)
    logits(GROUPED, 9, torch.float32)
    with pytest.raises(AssertionError, match="copied"):
        logits("sdpa", 9, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_row_without_a_mask_attends_in_groups_too(dtype, monkeypatch):
    """As a session asks for a token behind a text: all there is may be seen."""
    generator = torch.Generator().manual_seed(2)
    query, key, value = (
        torch.randn(1, heads, rows, 8, generator=generator).to(dtype) for heads, rows in ((6, 1), (2, 70), (2, 70))
    )
    module = SimpleNamespace(num_key_value_groups=3, is_causal=True)
    wanted = sdpa_attention.sdpa_attention_forward(module, query, key, value, None)[0]
    seen = []
    plain = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", lambda *a, **k: seen.append(a[0].shape) or plain(*a, **k))
    torch.testing.assert_close(attention.grouped_attention(module, query, key, value, None)[0], wanted)
    assert seen == [(1, 2, 3, 8)], "the heads that share keys are rows of one call"
