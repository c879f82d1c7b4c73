"""Heads that the library ``speculators`` wrote give here what its own draft model gives, for every combination of flags.

The referee was run once, in an environment of its own: see ``tests/support/referee/speculators_heads.py``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from specviz.errors import ModelUnavailable
from specviz.models.heads.layouts import LAYOUTS, layout_of
from specviz.models.heads.published import read
from specviz.models.hub.published import open_repository
from tests.support.referee.speculators_heads import DEPTH, HIDDEN, WHOLE
from tests.support.referee.stored_heads import FIT, FOLDER, HEADS, furthest, head_of, stored


@pytest.mark.spread(12)
@pytest.mark.parametrize("name", HEADS)
def test_logits_are_those_of_the_library_at_every_depth(tmp_path: Path, name: str) -> None:
    # Its trainer does not move a window on as it drafts, where engines do: only the first depth can be compared there.
    depths = 1 if "window" in name else DEPTH
    assert furthest(head_of(stored(tmp_path, name)), name, depths) < 1e-4


@pytest.mark.parametrize("flag", ["norm_before_residual", "norm_output"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_flag_read_the_other_way_is_another_head(tmp_path: Path, kind: str, flag: str) -> None:
    assert furthest(head_of(stored(tmp_path, kind, {flag: True})), kind, DEPTH) > 0.1


def test_a_head_as_the_library_saved_it_is_read(tmp_path: Path) -> None:
    repository = open_repository(str(shutil.copytree(FOLDER / "whole", tmp_path / "whole")))
    assert layout_of(repository) is LAYOUTS["speculators"]
    head = head_of(repository)
    assert furthest(head, WHOLE, DEPTH) < 1e-4
    assert head.config.taps == (2, 4, 5)
    assert head.draft_ids is not None and len(head.draft_ids) == len(head.head)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"norm_before_residual": None}, "does not say norm_before_residual: the library takes that for false and vLLM for true"),
        ({"norm_before_residual": "yes"}, "norm_before_residual 'yes', which is neither true nor false"),
        ({"norm_before_fc": True, "fc_norm": True}, "sets both norm_before_fc and fc_norm"),
        ({"norm_before_fc": True}, "lacks the tensor input_norm.weight"),
        ({"speculators_model_type": "dflash"}, "is a DFlash drafter, .* not read yet"),
        ({"speculators_model_type": "peagle"}, "is a P-EAGLE drafter"),
        ({"speculators_model_type": "mtp"}, "is MTP layers of the speculators library"),
        ({"parallel_draft_tokens": 4}, "sets parallel_draft_tokens to '4'"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4]}, "fc.weight of .* is 16 x 48 and should be 16 x 32"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 50]}, r"hidden states \[2, 4, 50\] of a target with 8 layers"),
        ({"transformer_layer_config": {"model_type": "qwen3_next"}}, "layers of the kind 'qwen3_next'"),
        ({"transformer_layer_config": None}, "has no transformer_layer_config"),
    ],
)
def test_what_it_cannot_read_is_refused_for_its_own_reason(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelUnavailable, match=words):
        head_of(stored(tmp_path, "llama", config))


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ({"residual_multiplier": 0.2}, "sets residual_multiplier: it scales what each layer adds"),
        ({"hidden_act": "gelu"}, "has hidden_act 'gelu'"),
        ({"vocab_size": 39}, "was made for 39 tokens, and tiny has 40"),
        ({"hidden_size": 24, "num_attention_heads": 6}, "made for hidden states 24 wide"),
        ({"layer_types": ["linear_attention"]}, "has layer_types"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "has dynamic rotary positions"),
    ],
)
def test_the_layers_settings_are_no_less_checked(tmp_path: Path, inner: dict[str, Any], words: str) -> None:
    layer = {**HEADS["llama"]["config"]["transformer_layer_config"], **inner}
    with pytest.raises(ModelUnavailable, match=words):
        head_of(stored(tmp_path, "llama", {"transformer_layer_config": layer}))


def test_a_window_without_its_layers_is_unused_as_in_the_library(tmp_path: Path) -> None:
    layer = {**HEADS["llama"]["config"]["transformer_layer_config"], "sliding_window": 3}
    assert "layer_types" not in layer
    head = head_of(stored(tmp_path, "llama", {"transformer_layer_config": layer}))
    assert head.config.how.windows == () and furthest(head, "llama", DEPTH) < 1e-4


def test_what_the_trainer_kept_of_the_target_is_told_and_left_alone(tmp_path: Path) -> None:
    kept = {"verifier_norm.weight": torch.ones(HIDDEN)}
    head = head_of(stored(tmp_path, "llama", tensors=kept))
    assert furthest(head, "llama", DEPTH) < 1e-4
    assert any("verifier_norm.weight is the target's" in note for note in head.notes)


def test_a_method_with_other_heads_says_which_method_they_are_for(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="holds EAGLE-3 heads of the speculators library: choose the method eagle3"):
        read("eagle", stored(tmp_path, "llama"), FIT)
