"""Settings of a GGUF file that change what its model computes: given to the configuration, or refused by name.

transformers reads a few of them, by a table of its own for each architecture, and ignores the rest. Sizes need no reading
here, as tensors of another shape are refused; rotary positions are read in ``gguf_rotary``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gguf import GGUFReader

from specviz.errors import ModelUnavailable, shown

_EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
PLACES: Mapping[str, tuple[str, ...]] = {
    "attention.layer_norm_epsilon": _EPSILON,
    "attention.layer_norm_rms_epsilon": _EPSILON,
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "use_parallel_residual": ("use_parallel_residual",),
}
"""Where a setting of the file stands in a configuration of transformers."""
IDLE: Mapping[str, tuple[Any, ...]] = {
    "activation_sparsity_scale": (), "altup.active_idx": (), "altup.num_inputs": (),
    "attention.causal": (True,), "attention.clamp_kqv": (0,), "attention.max_alibi_bias": (0,), "attention.output_scale": (0, 1),
    "attention.shared_kv_layers": (0,), "attention.sliding_window": (0,), "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,), "attn_logit_softcapping": (0,), "embedding_scale": (0, 1),
    "expert_gating_func": (0, 1, 3), "expert_group_count": (0, 1),
    "expert_group_scale": (0, 1), "expert_group_used_count": (0, 1), "expert_used_count": (0,), "expert_weights_norm": (False,),
    "expert_weights_scale": (0, 1), "final_logit_softcapping": (0,), "full_attention_interval": (0, 1),
    "interleave_moe_layer_step": (0, 1), "leading_dense_block_count": (0,), "logit_scale": (0, 1), "moe_every_n_layers": (0, 1),
    "n_deepstack_layers": (0,), "rescale_every_n_layers": (0,), "residual_scale": (0, 1), "router_logit_softcapping": (0,),
    "ssm.dt_b_c_rms": (False,), "swiglu_clamp_exp": (0,), "swiglu_clamp_shexp": (0,), "use_parallel_residual": (False,),
}  # fmt: skip
"""The values at which a setting without a place changes nothing; with any other the file is refused."""
SIZES = frozenset(
    """attention.head_count attention.head_count_kv attention.key_length attention.key_length_mla attention.key_length_swa
    attention.kv_lora_rank attention.layer_norm_epsilon attention.layer_norm_rms_epsilon attention.q_lora_rank
    attention.value_length attention.value_length_mla attention.value_length_swa block_count context_length embedding_length
    embedding_length_out embedding_length_per_layer_input expert_count expert_feed_forward_length
    expert_shared_count expert_shared_feed_forward_length experts_per_group feed_forward_length moe_latent_size
    nextn_predict_layers pooling_type shortconv.l_cache ssm.conv_kernel ssm.group_count ssm.inner_size ssm.state_size
    ssm.time_step_rank tensor_data_layout vocab_size""".split()
)
"""Settings that transformers reads, that the shapes of tensors hold, or that no text depends on."""
APART = ("attention.scale", "attention.sliding_window_pattern")
"""Settings that ask for more than a copy."""
_MIXED_SCALE = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose attention scale llama.cpp takes from the hidden size, as files do not hold it."""
_SLIDING, _FULL = "sliding_attention", "full_attention"


def apply_settings(config: Any, header: GGUFReader, name: str) -> tuple[str, ...]:
    """Give a configuration that transformers read from a file what else the file sets. Returns warnings of unknown settings.

    Raises ModelUnavailable for one that changes what is computed and has no place in the class of transformers.
    """
    field = header.get_field("general.architecture")
    arch = "" if field is None else str(field.contents())
    settings = {
        key.removeprefix(f"{arch}."): header.fields[key].contents() for key in header.fields if key.startswith(f"{arch}.")
    }
    held = config.to_dict()
    unknown = []
    _scale_attention(config, held, arch, settings, name)
    _slide(config, settings, name)
    for key, value in settings.items():
        place = next((place for place in PLACES.get(key, ()) if place in held), None)
        if place is not None and not isinstance(value, list):
            wanted = None if key == "attention.sliding_window" and value == 0 else value
            if held[place] != wanted:
                setattr(config, place, wanted)
        elif key == "expert_gating_func" and "scoring_func" in held:
            continue  # transformers reads it
        elif key in IDLE and value not in IDLE[key] and not _beyond(key, value, settings):
            raise _without_place(name, config, arch, key, value)
        elif key not in IDLE and key not in SIZES and not key.startswith("rope.") and key not in APART:
            unknown.append(f"{arch}.{key}")
    return (f"Settings of this GGUF that nothing here reads: {', '.join(unknown)}.",) if unknown else ()


def _scale_attention(config: Any, held: Mapping[str, Any], arch: str, settings: Mapping[str, Any], name: str) -> None:
    """Give the configuration the factor of attention scores, by default llama.cpp's own for the model."""
    size = held.get("head_dim") or held.get("hidden_size", 0) // max(1, held.get("num_attention_heads") or 1)
    scale = float(settings.get("attention.scale") or 0)
    if "query_pre_attn_scalar" in held:
        wide = held["num_hidden_layers"] == _MIXED_SCALE.get(arch)
        default = held["hidden_size"] / held["num_attention_heads"] if wide else size
        wanted = scale**-2 if scale else default
        config.query_pre_attn_scalar = round(wanted)
        if not math.isclose(wanted, round(wanted), rel_tol=1e-4):
            raise _without_place(name, config, arch, "attention.scale", scale)
    elif scale and not (size and math.isclose(scale, size**-0.5, rel_tol=1e-4)):
        raise _without_place(name, config, arch, "attention.scale", scale)


def _slide(config: Any, settings: Mapping[str, Any], name: str) -> None:
    """Give the configuration the layers that slide, where the file names them."""
    pattern, kinds = settings.get("attention.sliding_window_pattern"), getattr(config, "layer_types", None)
    window = settings.get("attention.sliding_window", 0)
    if pattern is not None and kinds:
        every = (
            [place % int(pattern) < int(pattern) - 1 for place in range(len(kinds))] if not isinstance(pattern, list) else pattern
        )
        config.layer_types = [_SLIDING if slides else _FULL for slides in every]
    elif window and kinds and _SLIDING not in kinds and not _beyond("attention.sliding_window", window, settings):
        raise ModelUnavailable(
            f"{name} has a sliding window of {window} tokens and does not say which layers of a {config.model_type} model slide. "
            "Give the model's own folder or hub id instead."
        )


def _beyond(key: str, value: Any, settings: Mapping[str, Any]) -> bool:
    """Whether a window is as long as the context, so that nothing ever slides."""
    return key == "attention.sliding_window" and value >= settings.get("context_length", math.inf)


def _without_place(name: str, config: Any, arch: str, key: str, value: Any) -> ModelUnavailable:
    return ModelUnavailable(
        f"{name} sets {arch}.{key} to {shown(value)}, for which a {config.model_type} model of transformers has no place. "
        "Give the model's own folder or hub id instead."
    )
