"""Reader of published EAGLE-1 and EAGLE-2 heads (HASS's too): Li et al. 2024 (arXiv 2401.15077, 2406.16858).

The layout: ``fc`` from [embedding; last hidden state], ``layers.0.*`` without a norm on its input, the target's own head.
vLLM wraps the settings once more, under ``model``. Two kinds of heads for pictures share the layout. In MSD's (arXiv 2505.14260)
the picture enters the layer unchanged. ViSpec's (arXiv 2509.15235) compress it with learned queries (``imadpt.*``) and mix the
last query's answer into every state (``img_fc``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.head_config import HeadConfig
from specviz.errors import ModelUnavailable
from specviz.models.heads.head_parts import assembled, conventions, head_sizes
from specviz.models.heads.head_settings import OURS, SIZES, layer_count, refuse_unknown, rotary, switch, windows, words
from specviz.models.hub.published import Fit, Repository

KIND, MSD, VISPEC = "EAGLE", "MSD", "ViSpec"
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama", "mistral", "mixtral", "qwen2", "eagle"),
}
SEEING = ("llava", "llava_next", "qwen2_vl", "qwen2_5_vl")
"""``model_type`` of the targets of heads for pictures, whose configurations are the targets' own, shortened."""
_OF_THE_EYE = ("mm_", "tune_mm_", "freeze_mm_", "use_mm_", "unfreeze_mm_", "vision_config", "image_aspect_ratio")
"""Prefixes of settings of the target's vision part."""
_READ = SIZES - set(_NEUTRAL) | {"bias", "qkv_bias", "eagle_fc_bias", "model", "method", "truncated_vocab_size"}


def feature_head(stored: Repository, target: Fit) -> FeatureHead:
    """Read the heads on the target's head, in its number format. Raises ModelUnavailable naming the misfit."""
    return _read(stored, target, _unwrapped(stored))


def is_msd(config: Mapping[str, Any]) -> bool:
    """Whether narrow heads with this config.json are MSD's: EAGLE's own have a text model's."""
    return config.get("model_type") in SEEING


def seeing_head(stored: Repository, target: Fit) -> FeatureHead:
    """Read MSD's or ViSpec's heads, whose rows have one position each even if the target's tokens have three.

    Raises ModelUnavailable naming the misfit.
    """
    settings = {name: value for name, value in stored.config.items() if not name.startswith(_OF_THE_EYE)}
    if settings.pop("model_type", "llava") not in SEEING:
        raise ModelUnavailable(
            f"{stored.name} has model_type {stored.config['model_type']!r}, which our reader does not know. {OURS}"
        )
    rope = settings.get("rope_scaling")
    if isinstance(rope, Mapping) and "mrope_section" in rope:
        del settings["rope_scaling"]
    compressed = "imadpt.q" in stored.files
    return _read(stored, target, {**settings, "architectures": None}, VISPEC if compressed else MSD)


def _read(stored: Repository, target: Fit, settings: dict[str, Any], kind: str = KIND) -> FeatureHead:
    name = stored.name
    names = {original.removeprefix("model."): original for original in stored.files}
    kinds = words(name, settings, "architectures")
    if strange := [kind for kind in kinds if "eagle3" in kind.lower() or not kind.endswith(("ForCausalLM", "EAGLEModel"))]:
        raise ModelUnavailable(f"{name} is a {strange[0]} (architectures), not heads of EAGLE-1 or EAGLE-2. {OURS}")
    refuse_unknown(name, settings, _READ, _NEUTRAL, {})
    if settings.get("truncated_vocab_size") not in (None, settings.get("vocab_size")):
        raise ModelUnavailable(f"{name} drafts over a truncated vocabulary (truncated_vocab_size), which is not read yet. {OURS}")
    if "layers.0.hidden_norm.weight" in names or "midlayer.hidden_norm.weight" in names:
        raise ModelUnavailable(f"{name} holds EAGLE-3 heads (hidden_norm): choose the method eagle3 for them.")
    if "d2t" in names:
        raise ModelUnavailable(f"{name} has a draft vocabulary (d2t), which heads of EAGLE-1 and EAGLE-2 do not. {OURS}")
    sizes = head_sizes(stored, target, names, settings, kind, narrower=False)
    if (bias := settings.get("bias", settings.get("eagle_fc_bias"))) is not None and bool(bias) != ("fc.bias" in names):
        has = "has" if "fc.bias" in names else "lacks"
        raise ModelUnavailable(f"{name} {has} fc.bias, and its config.json says bias {str(bool(bias)).lower()}. Get it anew.")
    layers = layer_count(stored, settings)
    how = conventions(
        name,
        (target.layers,),
        settings,
        head_norm=False,
        windows=windows(name, settings, layers),
        **rotary(stored, settings, sizes["head_size"]),
    )
    how = replace(how, pictured=kind != KIND, direct=kind != KIND)
    biased = switch(name, settings, "attention_bias")
    queries = "layers.0.self_attn.q_proj.bias" in names if kind == MSD else switch(name, settings, "qkv_bias")
    config = HeadConfig(
        **sizes,
        layers=layers,
        wide=False,
        how=how,
        bias="fc.bias" in names,
        attention_bias=biased or queries,
        output_bias=biased,
        mlp_bias=switch(name, settings, "mlp_bias"),
        first_norm=kind == MSD and "layers.0.input_layernorm.weight" in names,
        queries=stored.tensor("imadpt.q").shape[0] if kind == VISPEC else 0,
    )
    return assembled(stored, target, names, config, kind, shorter=kind == MSD)


def _unwrapped(stored: Repository) -> dict[str, Any]:
    inner = stored.config.get("model")
    return {**stored.config, **inner} if isinstance(inner, Mapping) else dict(stored.config)
