"""A published head whose config.json means other arithmetic than ours is refused by the setting's name; the rest is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specviz.errors import ModelUnavailable
from specviz.models.drafters.published_eagle3 import feature_net
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


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"norm_before_residual": True}, "sets norm_before_residual: it adds the normalised hidden state"),
        ({"norm_before_fc": True}, "sets norm_before_fc"),
        ({"fc_norm": True}, "sets fc_norm"),
        ({"norm_output": True}, "sets norm_output: it feeds the normalised state back .* SpecForge before September 2026"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 128}, "has layer_types .*sees a window alone"),
        ({"sliding_window": 128}, "has a sliding_window of 128"),
        ({"sliding_window": 128, "use_sliding_window": True}, "sets use_sliding_window"),
        ({"attention_bias": True}, "sets attention_bias"),
        ({"logit_scale": 0.5}, "has logit_scale 0.5"),
        ({"partial_rotary_factor": 0.5}, "has partial_rotary_factor 0.5"),
        ({"model_type": "gemma3_text"}, "has model_type 'gemma3_text'"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "has eagle_config.use_aux_hidden_state False"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "sets eagle_config.use_mtp_layernorm to 'True'"),
        ({"architectures": ["DFlashDraftModel"]}, "is a DFlashDraftModel"),
        ({"architectures": ["PEagleDraftModel"]}, "is a PEagleDraftModel"),
        ({"quantization_config": {"bits": 4}}, "sets quantization_config"),
        ({"residual_multiplier": 0.22}, "sets residual_multiplier to '0.22' .* does not know"),
        (
            {"speculators_model_type": "eagle3", "transformer_layer_config": {"hidden_size": 32}, "norm_before_residual": True},
            "layout of the speculators library .* sets norm_before_residual",
        ),
    ],
)
def test_a_setting_that_changes_the_arithmetic_is_refused_with_a_way_out(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelUnavailable, match=words) as refused:
        feature_net(opened(tmp_path, feature_tensors(), {**CONFIG, **config}), target())
    assert "leave the draft empty" in str(refused.value)


def test_settings_that_say_what_is_computed_anyway_change_nothing(tmp_path: Path) -> None:
    inner = {"use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True}
    inner |= {"use_mtp_layernorm": False, "next_layer_regular": True, "parallel_draft_step": 1}
    said = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "norm_output": False, "norm_before_residual": False,
        "use_sliding_window": False, "sliding_window": 512, "max_window_layers": 48, "attention_bias": False,
        "attention_dropout": 0.0, "pretraining_tp": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.53.2", "use_cache": True, "bos_token_id": 1, "eagle_config": inner, "rope_scaling": None,
    }  # fmt: skip
    net = feature_net(opened(tmp_path, feature_tensors(), {**CONFIG, **said}), target())
    tokens, features = text()
    expected = expected_logits(feature_tensors(), target().embedding, tokens, features)
    assert (logits_of(net, tokens, features) - expected).abs().max() < 1e-9


def test_heads_draft_on_an_embedding_of_their_own(tmp_path: Path) -> None:
    own = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(5))
    tensors = {**feature_tensors(), "embed_tokens.weight": own}
    net = feature_net(opened(tmp_path / "own", tensors, CONFIG), target())
    tokens, features = text()
    expected = expected_logits(tensors, own.double(), tokens, features)
    assert (logits_of(net, tokens, features) - expected).abs().max() < 1e-9
    del tensors["lm_head.weight"], tensors["d2t"], tensors["t2d"]
    with pytest.raises(ModelUnavailable, match="ties its head to an embedding of its own"):
        feature_net(opened(tmp_path / "tied", tensors, {**CONFIG, "tie_word_embeddings": True}), target())


def test_an_embedding_that_is_the_targets_is_not_held_twice(tmp_path: Path) -> None:
    goal = target()
    net = feature_net(opened(tmp_path, {**feature_tensors(), "embed_tokens.weight": goal.embedding.detach()}, CONFIG), goal)
    assert net.embedding.data_ptr() == goal.embedding.data_ptr()
