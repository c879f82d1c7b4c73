"""Settings of published heads: those that are read, those without effect on a forward pass, and all others, which are refused.

An unknown setting may change the computation without adding a tensor, and a head read without it silently drafts badly. So it
is refused by name. The meanings of settings are those of SafeAILab/EAGLE, sgl-project/SpecForge, Tencent/AngelSlim,
vllm-project/speculators, vLLM and NVIDIA's Model-Optimizer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specviz.errors import ModelUnavailable, shown
from specviz.models.hub.published import Repository

OURS = "Choose other heads, or leave the draft empty."
STRANGE = {
    "quantization_config": "says that the weights are quantised, and we read plain ones",
    "residual_multiplier": "scales what each layer adds, which we do not compute",
    "embedding_multiplier": "scales the embedding, which we do not compute",
}
"""Settings with a known effect that is not computed here, with that effect."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "logit_scale": (1,),
    "position_embedding_type": ("rope",),
    "is_causal": (True,),
}
"""Accepted values of settings: those that describe the computation here. An unset one is accepted too."""
SIZES = frozenset(
    """hidden_size target_hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size num_hidden_layers
    rms_norm_eps rope_theta rope_scaling rope_parameters partial_rotary_factor max_position_embeddings attention_bias mlp_bias
    layer_types sliding_window use_sliding_window max_window_layers architectures tie_word_embeddings model_type vocab_size
    draft_vocab_size""".split()
)
"""Settings that every reader of heads reads."""
HARMLESS = frozenset(
    """_attn_implementation _name_or_path attention_dropout auto_map chunk_size_feed_forward decoder_sparse_step dtype
    embed_requires_grad id2label initializer_range is_decoder is_encoder_decoder label2id length_penalty max_length
    min_length modal_type num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_router_logits pretraining_tp problem_type repetition_penalty return_dict router_aux_loss_coef
    speculators_version target_model_type temperature top_k top_p torch_dtype transformers_version typical_p use_cache""".split()
)
"""Settings without effect on a forward pass: names, ids, training, generation, splitting of products."""


def refuse_unknown(name: str, settings: Mapping[str, Any], read: Collection[str], values: Mapping[str, Sequence[Any]]) -> None:
    """Raise ModelUnavailable for the first of ``settings`` that may change the computation: a set one that is not in ``read``, or
    one with a value that is not among its ``values``."""
    values = {**NEUTRAL, **values}
    for field, value in settings.items():
        names_a_token = field.endswith("_token_id") and field != "mask_token_id"  # block drafters read that one
        if field in HARMLESS or names_a_token or value is None or (field in read and field not in values):
            continue
        if field in values and value not in values[field]:
            known = " or ".join(str(good) for good in values[field])
            raise ModelUnavailable(f"{name} has {field} {shown(value)}, and our network computes {known or 'none'}. {OURS}")
        if field not in values and value and field in STRANGE:
            raise ModelUnavailable(f"{name} sets {field}: it {STRANGE[field]}. {OURS}")
        if field not in values and value:
            raise ModelUnavailable(
                f"{name} sets {field} to {str(value)[:60]!r} in its config.json, which our reader does not know and will not "
                f"leave out. {OURS} If it changes nothing of what is computed, take it out of a copy of the file."
            )


def words(name: str, settings: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """A setting that lists words, () by default. Raises ModelUnavailable for anything else."""
    value = settings.get(field)
    if value is not None and not (isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)):
        raise _no_value(name, field, value, "a list of words")
    return tuple(value or ())


def whole_numbers(name: str, settings: Mapping[str, Any], field: str) -> tuple[int, ...]:
    """A setting that lists whole numbers from 0 on, () by default. Raises ModelUnavailable for anything else."""
    value = settings.get(field)
    if value is not None and not (
        isinstance(value, list | tuple) and all(type(number) is int and number >= 0 for number in value)
    ):
        raise _no_value(name, field, value, "a list of whole numbers")
    return tuple(value or ())


def positive(name: str, settings: Mapping[str, Any], field: str, otherwise: float) -> float:
    """A setting that is a number above 0, ``otherwise`` by default. Raises ModelUnavailable for anything else."""
    value = settings.get(field)
    value = otherwise if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise _no_value(name, field, value, "a number above 0")
    return float(value)


def section(name: str, settings: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A setting that holds settings, {} by default. Raises ModelUnavailable for anything else."""
    value = settings.get(field)
    if not isinstance(value, Mapping | None):
        raise _no_value(name, field, value, "a group of settings")
    return dict(value or {})


def layer_count(stored: Repository, settings: Mapping[str, Any]) -> int:
    """Number of a head's layers, 1 by default. Raises ModelUnavailable for more layers than its files hold tensors: such a head
    would be built before the missing weights are noticed."""
    layers = whole_number(stored.name, settings, "num_hidden_layers", 1)
    if layers > len(stored.files):
        raise ModelUnavailable(
            f"The config.json of {stored.name} says num_hidden_layers {shown(layers)}, and its files hold {len(stored.files)} "
            "tensors. Get the heads again."
        )
    return layers


def _no_value(name: str, field: str, value: Any, meant: str) -> ModelUnavailable:
    return ModelUnavailable(f"The config.json of {name} has {field} {shown(value)}, which is not {meant}. {OURS}")


def whole_number(name: str, settings: Mapping[str, Any], field: str, otherwise: int | None = None) -> int:
    """A whole number from 1 on, ``otherwise`` by default. Raises ModelUnavailable if it is missing or of another kind."""
    value = settings.get(field)
    value = otherwise if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelUnavailable(f"The config.json of {name} has no {field}: these are no heads as published.")
    return value


def switch(name: str, settings: Mapping[str, Any], field: str) -> bool:
    """A setting that is true or false, false by default. Raises ModelUnavailable for anything else."""
    value = settings.get(field)
    if not isinstance(value, bool | None):
        raise ModelUnavailable(f"{name} has {field} {shown(value)}, which is neither true nor false. {OURS}")
    return bool(value)


def windows(name: str, settings: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Sliding window of each layer, 0 for the whole text; () if no layer has one. Raises ModelUnavailable if it is ambiguous."""
    kinds, width = words(name, settings, "layer_types"), settings.get("sliding_window")
    if not kinds:
        if width and settings.get("use_sliding_window") is not False:
            raise ModelUnavailable(
                f"{name} has a sliding_window of {shown(width)} and does not say of which layers (layer_types): engines differ "
                "in what they make of it. Add layer_types to a copy of its config.json, or use_sliding_window: false if it "
                "has none."
            )
        return ()
    if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise ModelUnavailable(
            f"{name} has layer_types {shown(kinds)} for {layers} layers, which our reader does not know. {OURS}"
        )
    if "sliding_attention" not in kinds:
        return ()
    width = whole_number(name, settings, "sliding_window")
    return tuple(width if kind == "sliding_attention" else 0 for kind in kinds)


def rotary(stored: Repository, settings: Mapping[str, Any], size: int, woven: bool = False) -> dict[str, Any]:
    """Return the conventions of rotary positions: ``theta``, ``rates``, ``rotary_scale`` and, for pictures, ``sections``.

    ``woven`` is the trainer's default of ``mrope_interleaved``: whether rates alternate between time, height and width.
    """
    name = stored.name
    rope = section(name, settings, "rope_parameters") or section(name, settings, "rope_scaling")
    if "sliding_attention" in rope:  # one set per kind of layer; the trainer and engines use this one
        rope = section(name, rope, "sliding_attention")
    theta, factor = (
        positive(name, {field: rope.pop(field, None) or settings.get(field)}, field, otherwise)
        for field, otherwise in (("rope_theta", 10000.0), ("partial_rotary_factor", 1.0))
    )
    if factor > 1:
        raise _no_value(name, "partial_rotary_factor", factor, "a share of a head")
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    said: dict[str, Any] = {"theta": theta}
    if sections := whole_numbers(name, {"mrope_section": rope.pop("mrope_section", None)}, "mrope_section"):
        said |= {"sections": sections, "sections_woven": bool(rope.pop("mrope_interleaved", woven))}
        if sum(said["sections"]) != int(size * factor) // 2 or len(sections) != 3:
            raise ModelUnavailable(
                f"{name} deals out {shown(list(sections))} rotary rates (mrope_section), "
                f"and has {int(size * factor) // 2}. {OURS}"
            )
        kind = "default" if kind == "mrope" else kind
    if kind == "default" and factor == 1:
        return said
    if kind not in {"default", "linear", "llama3", "yarn"}:
        raise ModelUnavailable(f"{name} has {kind} rotary positions, which our drafter cannot follow. {OURS}")
    rotated = int(size * factor)
    if kind == "default":
        rates = theta ** -(torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
        return {**said, "rates": tuple(rates.tolist())}
    rope["rope_type"] = kind
    longest = whole_number(name, settings, "max_position_embeddings", 2048)
    try:
        config = LlamaConfig(  # type: ignore[call-arg]  # it also reads arguments beyond its declared fields
            head_dim=rotated, rope_theta=theta, rope_scaling=rope, max_position_embeddings=longest
        )
        rates, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    except Exception as problem:  # each kind has its own parameters, which transformers does not check
        raise ModelUnavailable(
            f"The {kind} rotary positions of {name} cannot be computed ({type(problem).__name__}: {problem}). {OURS}"
        ) from problem
    if not bool(torch.isfinite(rates).all()):
        raise ModelUnavailable(f"The {kind} rotary positions of {name} come out as no numbers. {OURS}")
    return {**said, "rates": tuple(rates.double().tolist()), "rotary_scale": float(scale)}
