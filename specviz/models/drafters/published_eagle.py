"""Reader of published EAGLE-1 and EAGLE-2 heads (HASS's too): Li et al. 2024 (arXiv 2401.15077, 2406.16858).

The layout: ``fc`` from [embedding; last hidden state], ``layers.0.*`` without a norm on its input, the target's own head.
vLLM wraps the settings once more, under ``model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specviz.drafters.networks.feature_head import FeatureHead, HeadConfig
from specviz.errors import ModelUnavailable
from specviz.models.drafters.head_parts import assembled, conventions, head_sizes
from specviz.models.drafters.head_settings import OURS, SIZES, refuse_unknown, rotary, switch, whole_number, windows
from specviz.models.hub.published import Fit, Repository

KIND = "EAGLE"
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama", "mistral", "mixtral", "qwen2", "eagle"),
}
_READ = SIZES - set(_NEUTRAL) | {"bias", "qkv_bias", "eagle_fc_bias", "model", "method", "truncated_vocab_size"}


def feature_head(stored: Repository, target: Fit) -> FeatureHead:
    """The heads on the target's head, in its number format. Raises ModelUnavailable naming what does not fit."""
    name, settings = stored.name, _unwrapped(stored)
    names = {original.removeprefix("model."): original for original in stored.files}
    kinds = [str(kind) for kind in settings.get("architectures") or ()]
    if strange := [kind for kind in kinds if "eagle3" in kind.lower() or not kind.endswith(("ForCausalLM", "EAGLEModel"))]:
        raise ModelUnavailable(f"{name} is a {strange[0]} (architectures), not heads of EAGLE-1 or EAGLE-2. {OURS}")
    refuse_unknown(name, settings, _READ, _NEUTRAL, {})
    if settings.get("truncated_vocab_size") not in (None, settings.get("vocab_size")):
        raise ModelUnavailable(f"{name} drafts over a truncated vocabulary (truncated_vocab_size), which is not read yet. {OURS}")
    if "layers.0.hidden_norm.weight" in names or "midlayer.hidden_norm.weight" in names:
        raise ModelUnavailable(f"{name} holds EAGLE-3 heads (hidden_norm): choose the method eagle3 for them.")
    if "d2t" in names:
        raise ModelUnavailable(f"{name} has a draft vocabulary (d2t), which heads of EAGLE-1 and EAGLE-2 do not. {OURS}")
    sizes = head_sizes(stored, target, names, settings, KIND, narrower=False)
    if (bias := settings.get("bias", settings.get("eagle_fc_bias"))) is not None and bool(bias) != ("fc.bias" in names):
        has = "has" if "fc.bias" in names else "lacks"
        raise ModelUnavailable(f"{name} {has} fc.bias, and its config.json says bias {str(bool(bias)).lower()}. Get it anew.")
    layers = whole_number(name, settings, "num_hidden_layers", 1)
    how = conventions(
        (target.layers,),
        settings.get("rms_norm_eps"),
        head_norm=False,
        windows=windows(name, settings, layers),
        **rotary(stored, settings, sizes["head_size"]),
    )
    biased = switch(name, settings, "attention_bias")
    config = HeadConfig(
        **sizes,
        layers=layers,
        wide=False,
        how=how,
        bias="fc.bias" in names,
        attention_bias=biased or switch(name, settings, "qkv_bias"),
        output_bias=biased,
        mlp_bias=switch(name, settings, "mlp_bias"),
    )
    return assembled(stored, target, names, config, KIND)


def _unwrapped(stored: Repository) -> dict[str, Any]:
    inner = stored.config.get("model")
    return {**stored.config, **inner} if isinstance(inner, Mapping) else dict(stored.config)
