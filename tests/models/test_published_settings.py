"""A published head whose config.json means other arithmetic than ours is refused by the setting's name; the rest is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


@pytest.mark.spread(7)
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"norm_before_fc": True}, "lacks the tensor input_norm.weight"),
        ({"fc_norm": True}, "lacks the tensor fc_norm.0.weight"),
        ({"fc_norm": True, "norm_before_fc": True}, "sets both norm_before_fc and fc_norm"),
        ({"eagle_config": {"norm_before_fc": True}}, "lacks the tensor input_norm.weight"),
        ({"norm_output": "yes"}, "norm_output 'yes', which is neither true nor false"),
        ({"layer_types": ["linear_attention"]}, "has layer_types"),
        ({"layer_types": ["sliding_attention"]}, "sliding_window None, which is not a whole number"),
        ({"sliding_window": 128}, "has a sliding_window of 128 and does not say of which layers"),
        ({"sliding_window": 128, "use_sliding_window": True}, "does not say of which layers"),
        ({"attention_bias": True}, "lacks the tensor layers.0.self_attn.q_proj.bias"),
        ({"mlp_bias": True}, "lacks the tensor layers.0.mlp.gate_proj.bias"),
        ({"logit_scale": 0.5}, "has logit_scale 0.5"),
        ({"mask_token_id": 151669}, "sets mask_token_id to '151669' .* does not know"),
        ({"model_type": "gemma3_text"}, "has model_type 'gemma3_text'"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "has eagle_config.use_aux_hidden_state False"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "sets eagle_config.use_mtp_layernorm to 'True'"),
        ({"quantization_config": {"bits": 4}}, "sets quantization_config"),
        ({"residual_multiplier": 0.22}, "sets residual_multiplier: it scales"),
        ({"attention_multiplier": 0.22}, "sets attention_multiplier to '0.22' .* does not know"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}, r"deals out \[1, 1, 2\] rotary rates .* has 3"),
    ],
)
def test_a_setting_that_changes_the_arithmetic_is_refused_with_a_way_out(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelUnavailable, match=words) as refused:
        read("eagle3", opened(tmp_path, feature_tensors(), {**CONFIG, **config}), target())
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("architecture", "words"),
    [("DFlashDraftModel", "is a DFlash drafter"), ("PEagleDraftModel", "is a P-EAGLE drafter"), ("DSparkDraftModel", "DSpark")],
)
def test_other_drafters_are_called_by_their_name(tmp_path: Path, architecture: str, words: str) -> None:
    with pytest.raises(ModelUnavailable, match=words):
        read("eagle3", opened(tmp_path, feature_tensors(), {**CONFIG, "architectures": [architecture]}), target())


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
