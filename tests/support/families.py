"""Tiny random models of every causal class that transformers registers: shrunk by rules on the names of settings."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from specviz.targets.layers import layer_kinds
from tests.support.tiny.tokenizers import byte_level_tokenizer

VOCAB = 352
CONTEXT = 34
WINDOW = 12
LARGEST = 7_000_000
"""Parameters that no tiny model has."""

_SIZES: tuple[tuple[str, int | None], ...] = (
    (r".*vocab_size.*|n_words", VOCAB),
    (r"(eos|bos|pad|decoder_start|sep|cls|mask|forced_eos|forced_bos)_token_id|(pad|eos|bos)_index", None),
    (
        r"(original_)?max_(position_embeddings|seq_len|sequence_length|source_positions|target_positions)|n_positions|n_ctx",
        CONTEXT,
    ),
    (r"(sliding|attention)_window(_size)?|window_size|sliding_window_size|local_window_size|sliding_window_length", WINDOW),
    (r".*(num|n)_(hidden_|decoder_|encoder_)?layers?|n_layers?|(de|en)coder_layers|num_layers", 4),
    (r"(num|n)_(kv|key_value)_heads|.*num_key_value_heads|n_head_kv|.*num_kv_heads|attention_groups", 2),
    (r".*(attention|n|num)_heads?|num_attention_heads|.*_num_heads", 4),
    (r"qk_head_dim", 16),
    (r"qk_(rope|nope)_head_dim|v_head_dim|.*head_dim|attention_head_dim|d_head|d_kv", 8),
    (r".*lora_rank|.*_rank", 16),
    (r"rotary_dim", 8),
    (r"(hidden|embedding|model|word_embed_proj|embed|n)_?(size|dim|embd)|d_model|dim|n_embd|hidden_dim|d_embed", 32),
    (r"(moe_|expert_|shared_expert_|shared_|dense_)*(intermediate_size|ffn_dim|ffn_hidden_size)|n_inner|d_ff|dff|.*_ffn_dim", 48),
    (r"moe_k|.*experts_per_tok(en)?|top_?k(_experts)?|moe_top_?k|num_selected_experts|moe_topk|num_experts_per_topk", 2),
    (r"(num|n)_(local_|routed_|dense_)?experts|moe_num_experts|ffn_num_experts", 4),
    (r"n_group|topk_group|num_expert_group", 1),
)
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MIXED = ["sliding_attention", "full_attention"] * 2
OWN: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "dots3_note": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "gemma3n_text": {"layer_types": _MIXED, "num_kv_shared_layers": 2},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"rope_parameters": {**_ROPE, "alpha": 1.0}, "head_dim": 8},
    "hunyuan_v1_moe": {"rope_parameters": {**_ROPE, "alpha": 1.0}, "head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "ministral": {"rope_parameters": _ROPE, "layer_types": _MIXED, "head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {"indexer_budget": 8, "indexer_compress_ratio": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layer_types": ["mamba", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a class wants beyond the rules."""


def shrunk(config_class: Any, nested: bool = False) -> dict[str, Any]:
    """Small values for the settings of a class whose names say what they are; nested configurations too."""
    default = config_class()
    values: dict[str, Any] = {}
    for name, value in default.to_dict().items():
        inner = getattr(default, name, None) if name in config_class.sub_configs else None
        if inner is not None:
            values[name] = shrunk(type(inner), nested=True)
        elif name == "is_decoder":
            values[name] = True
        elif isinstance(value, float) and re.fullmatch(r"initializer_range|init_(method_)?std|initializer_(std|factor)", name):
            values[name] = 0.25
        elif isinstance(value, int) and not isinstance(value, bool):
            found = [small for pattern, small in _SIZES if re.fullmatch(pattern, name)]
            if found:
                values[name] = VOCAB - 1 if nested and found[0] is None else found[0]
    if "kv_lora_rank" in values:  # compressed keys belong to every head
        values["num_key_value_heads"] = values["num_attention_heads"]
    return values


def tiny_config(kind: str, **more: Any) -> Any:
    """A small configuration of the model type ``kind``."""
    values = {**shrunk(CONFIG_MAPPING[kind]), **OWN.get(kind, {}), **more}
    return _made(CONFIG_MAPPING[kind], values)


def _made(config_class: Any, values: dict[str, Any]) -> Any:
    """The configuration; a token that may not be missing is the last of the vocabulary."""
    while True:
        try:
            return config_class(**values)
        except StrictDataclassFieldValidationError as problem:
            name = next((name for name, value in values.items() if value is None and f"'{name}'" in str(problem)), None)
            if name is None:
                raise
            values = {**values, name: VOCAB - 1}


def tiny_model(kind: str, **more: Any) -> Any:
    """A random model of the type ``kind``. Raises what the class raises, and ValueError for one that is not small."""
    config = tiny_config(kind, **more)
    if len(set(layer_kinds(config.get_text_config(decoder=True)))) == 1:  # four layers are for classes that mix kinds
        config = tiny_config(kind, **{"num_hidden_layers": 2, **more})
    with torch.device("meta"):
        size = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():  # a router left at zero would make every expert alike
        if weight.dim() > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.25)
    for name in ("bos_token_id", "pad_token_id", "eos_token_id"):
        setattr(model.generation_config, name, None)
    return model


@cache
def words() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of fewer tokens than the models have, none of which ends a text."""
    return byte_level_tokenizer(["The quick fox jumps over the dog. "], ())
