"""A published head whose config.json means other arithmetic than ours is refused by the setting's name; the rest is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specviz.errors import ModelUnavailable
from specviz.models.heads.published import read
from tests.support.tiny.published_heads import (
    CONFIG,
    HIDDEN,
    VOCAB,
    expected_logits,
    feature_tensors,
    logits_of,
    opened,
    target,
    text,
)


def test_settings_that_say_what_is_computed_anyway_change_nothing(tmp_path: Path) -> None:
    inner = {"use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True}
    inner |= {"use_mtp_layernorm": False, "next_layer_regular": True, "parallel_draft_step": 1}
    said = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "norm_output": False, "norm_before_residual": False,
        "use_sliding_window": False, "sliding_window": 512, "max_window_layers": 48, "attention_bias": False,
        "attention_dropout": 0.0, "pretraining_tp": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.53.2", "use_cache": True, "router_aux_loss_coef": 0.001, "eod_token_id": 120020,
        "decoder_sparse_step": 1, "image_newline_token_id": 120121, "target_model_type": "qwen3_moe",
        "bos_token_id": 1, "eagle_config": inner, "rope_scaling": None,
    }  # fmt: skip
    net = read("eagle3", opened(tmp_path, feature_tensors(), {**CONFIG, **said}), target())
    tokens, features = text()
    expected = expected_logits(feature_tensors(), target().embedding, tokens, features)
    assert (logits_of(net, tokens, features) - expected).abs().max() < 1e-9


def test_heads_draft_on_an_embedding_of_their_own(tmp_path: Path) -> None:
    own = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(5))
    tensors = {**feature_tensors(), "embed_tokens.weight": own}
    net = read("eagle3", opened(tmp_path / "own", tensors, CONFIG), target())
    tokens, features = text()
    expected = expected_logits(tensors, own.double(), tokens, features)
    assert (logits_of(net, tokens, features) - expected).abs().max() < 1e-9
    del tensors["lm_head.weight"], tensors["d2t"], tensors["t2d"]
    with pytest.raises(ModelUnavailable, match="ties its head to an embedding of its own"):
        read("eagle3", opened(tmp_path / "tied", tensors, {**CONFIG, "tie_word_embeddings": True}), target())


def test_an_embedding_that_is_the_targets_is_not_held_twice(tmp_path: Path) -> None:
    goal = target()
    net = read("eagle3", opened(tmp_path, {**feature_tensors(), "embed_tokens.weight": goal.embedding.detach()}, CONFIG), goal)
    assert net.embedding.data_ptr() == goal.embedding.data_ptr()
