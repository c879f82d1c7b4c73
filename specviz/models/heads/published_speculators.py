"""Reader of EAGLE-3 heads in the layout of vllm-project/speculators (RedHatAI's ``*-speculator.eagle3``).

The decoder's settings lie under ``transformer_layer_config`` and omit the defaults of their ``model_type``. The flags beside
them describe the rest: ``norm_before_residual``, ``norm_before_fc``, ``fc_norm``, ``norm_output``. Layers are Llama's or
Qwen3's, one or several, of which the first reads [embedding; state]; the embedding is the head's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, Qwen3Config

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.head_config import EACH, TOGETHER, HeadConfig
from specviz.errors import ModelUnavailable, shown
from specviz.models.heads.head_parts import assembled, conventions, fitting_taps, head_sizes
from specviz.models.heads.head_settings import (
    HARMLESS,
    OURS,
    SIZES,
    layer_count,
    refuse_unknown,
    rotary,
    section,
    switch,
    whole_numbers,
    windows,
)  # fmt: skip
from specviz.models.hub.published import Fit, Repository

KIND = "EAGLE-3 (speculators)"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_READ = frozenset(
    {"speculators_model_type", "speculators_config", "transformer_layer_config", "draft_vocab_size", "target_hidden_size",
     "eagle_aux_hidden_state_layer_ids", "architectures", *FLAGS}
)  # fmt: skip
_DECODERS: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is in this layout."""
    return "speculators_model_type" in config or "transformer_layer_config" in config


def feature_head(stored: Repository, target: Fit) -> FeatureHead:
    """Read the head, in the target's number format, on its own embedding or else the target's.

    Raises ModelUnavailable naming the tensor or setting that does not fit.
    """
    name, outer = stored.name, stored.config
    kind = outer.get("speculators_model_type")
    if kind != "eagle3":
        raise ModelUnavailable(f"{name} is a speculator of the kind {shown(kind)} (speculators_model_type), not eagle3. {OURS}")
    refuse_unknown(name, outer, _READ, {}, {})
    if outer.get("norm_before_residual") is None:
        raise ModelUnavailable(
            f"{name} does not say norm_before_residual: the library takes that for false and vLLM for true. Find out which it "
            "was trained with, and write it into a copy of its config.json."
        )
    settings = _decoder_settings(stored)
    names = {original.removeprefix("model."): original for original in stored.files}
    sizes = head_sizes(stored, target, names, {**settings, "target_hidden_size": outer.get("target_hidden_size")}, KIND, True)
    if settings["vocab_size"] != sizes["vocab_size"]:
        raise ModelUnavailable(
            f"{name} was made for {settings['vocab_size']} tokens, and {target.name} has {sizes['vocab_size']}: choose the "
            "target it was trained for."
        )
    layers = layer_count(stored, settings)
    together, each = (switch(name, outer, flag) for flag in ("norm_before_fc", "fc_norm"))
    if together and each:
        raise ModelUnavailable(f"{name} sets both norm_before_fc and fc_norm, of which a head has one. {OURS}")
    how = conventions(
        name,
        fitting_taps(name, _taps(name, outer, target.layers), target.layers),
        settings,
        entry_norm=TOGETHER if together else EACH if each else "",
        normed_residual=switch(name, outer, "norm_before_residual"),
        feeds_normed=switch(name, outer, "norm_output"),
        windows=windows(name, settings, layers) if settings.get("layer_types") else (),
        **rotary(stored, settings, sizes["head_size"]),
    )
    biased = switch(name, settings, "attention_bias")
    config = HeadConfig(
        **sizes,
        layers=layers,
        wide=True,
        how=how,
        attention_bias=biased,
        output_bias=biased,
        mlp_bias=switch(name, settings, "mlp_bias"),
        head_norms=settings["model_type"] == "qwen3",
    )
    return assembled(stored, target, names, config, KIND)


def _taps(name: str, outer: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    return whole_numbers(name, outer, "eagle_aux_hidden_state_layer_ids") or (2, layers // 2, layers - 3)


def _decoder_settings(stored: Repository) -> dict[str, Any]:
    """The decoder's settings, completed with transformers' defaults for their kind of model."""
    name = stored.name
    inner = section(name, stored.config, "transformer_layer_config")
    if not inner:
        raise ModelUnavailable(f"{name} has no transformer_layer_config, without which its layers are unknown. Get it anew.")
    kind = inner.get("model_type")
    if kind not in _DECODERS:
        known = " or ".join(_DECODERS)
        raise ModelUnavailable(f"{name} has layers of the kind {shown(kind)} (model_type), and ours are {known}'s. {OURS}")
    refuse_unknown(name, inner, SIZES, {}, {})
    layer_count(stored, inner)
    whole = _DECODERS[kind](**{field: value for field, value in inner.items() if field not in HARMLESS})
    settings = {**inner, **{field: getattr(whole, field) for field in SIZES if hasattr(whole, field)}, "model_type": kind}
    if (act := getattr(whole, "hidden_act", "silu")) != "silu":
        raise ModelUnavailable(f"{name} has hidden_act {act!r}, and our network computes silu. {OURS}")
    return settings
