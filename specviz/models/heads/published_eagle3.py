"""Reader of EAGLE-3 heads with a flat config.json: SafeAILab/EAGLE, SpecForge, AngelSlim, NVIDIA's Model-Optimizer.

The layout: ``midlayer.*`` or ``layers.0.*`` (one decoder layer twice as wide on its input), ``fc``, ``norm``; ``lm_head`` over a
draft vocabulary, ``d2t`` (the offset of each row's token from the row's number), ``t2d`` (a mask of the vocabulary's tokens).
Li et al. 2025 (arXiv 2503.01840); EAGLE-3.1 adds ``fc_norm`` and ``norm_output``, gpt-oss's heads ``norm_before_fc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.head_config import EACH, TOGETHER, HeadConfig
from specviz.errors import ModelUnavailable
from specviz.models.heads.head_parts import assembled, conventions, fitting_taps, head_sizes
from specviz.models.heads.head_settings import (
    OURS,
    SIZES,
    layer_count,
    refuse_unknown,
    rotary,
    section,
    switch,
    whole_numbers,
    windows,
    words,
)  # fmt: skip
from specviz.models.hub.published import Fit, Repository

KIND = "EAGLE-3"
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama", "mistral", "phi3", "qwen2", "qwen3"),
    "num_hidden_layers": (1,),
    "eagle_config.next_layer_regular": (True,),
    "eagle_config.parallel_draft_step": (0, 1),
    "eagle_config.use_aux_hidden_state": (True,),
    "eagle_config.use_input_layernorm_in_first_layer": (True,),
    "eagle_config.use_last_layernorm": (True,),
}
_READ = SIZES - set(_NEUTRAL) | {
    "eagle_aux_hidden_state_layer_ids", "eagle_config", "eagle_config.eagle_aux_hidden_state_layer_ids",
    "eagle_config.norm_before_fc", "eagle_config.parallel_draft_heads_num_layers", "norm_before_residual", "norm_before_fc",
    "fc_norm", "norm_output", "qkv_bias",
}  # fmt: skip
_ANGELSLIM = "Eagle3LlamaForCausalLM"


def feature_head(stored: Repository, target: Fit) -> FeatureHead:
    """Read the heads, in the target's number format, on their own embedding or else the target's.

    Raises ModelUnavailable naming the tensor or setting that does not fit.
    """
    name, settings = stored.name, stored.config
    names = {_plain(original): original for original in stored.files}
    kinds = words(name, settings, "architectures")
    if strange := [kind for kind in kinds if "eagle3" not in kind.lower() and kind != "LlamaForCausalLM"]:
        raise ModelUnavailable(f"{name} is a {strange[0]} (architectures), not EAGLE-3 heads. {OURS}")
    inner = section(name, settings, "eagle_config")
    refuse_unknown(name, {**settings, **{f"eagle_config.{field}": value for field, value in inner.items()}}, _READ, _NEUTRAL, {})
    if settings.get("tie_word_embeddings") and "embed_tokens.weight" in names and "lm_head.weight" not in names:
        raise ModelUnavailable(f"{name} ties its head to an embedding of its own, which is not read yet. {OURS}")
    sizes = head_sizes(stored, target, names, settings, KIND, narrower=True)
    biased = switch(name, settings, "attention_bias")
    how = conventions(
        name,
        _taps(settings, inner, name, target.layers),
        settings,
        entry_norm=_entry_norm(name, {**settings, **inner}),
        normed_residual=switch(name, settings, "norm_before_residual"),
        feeds_normed=switch(name, settings, "norm_output"),
        windows=windows(name, settings, 1),
        **rotary(stored, settings, sizes["head_size"], woven=_ANGELSLIM in kinds),
    )
    config = HeadConfig(
        **sizes,
        layers=layer_count(stored, settings),
        wide=True,
        how=how,
        bias="fc.bias" in names,
        attention_bias=biased or switch(name, settings, "qkv_bias"),
        output_bias=biased,
        mlp_bias=switch(name, settings, "mlp_bias"),
        head_norms="layers.0.self_attn.q_norm.weight" in names,
    )
    return assembled(stored, target, names, config, KIND, _notes(settings, inner, kinds))


def _plain(name: str) -> str:
    """A published name without its prefix, ``midlayer`` as ``layers.0``."""
    name = name.removeprefix("model.")
    return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def _entry_norm(name: str, settings: Mapping[str, Any]) -> str:
    together, each = switch(name, settings, "norm_before_fc"), switch(name, settings, "fc_norm")
    if together and each:
        raise ModelUnavailable(f"{name} sets both norm_before_fc and fc_norm, of which a head has one. {OURS}")
    return TOGETHER if together else EACH if each else ""


def _taps(settings: Mapping[str, Any], inner: Mapping[str, Any], name: str, layers: int) -> tuple[int, ...]:
    """Taps of the head, in transformers' numbering of hidden states; published configs number them in two ways."""
    field = "eagle_aux_hidden_state_layer_ids"
    # Under eagle_config a number is a layer's, and its output is the next hidden state.
    taps = whole_numbers(name, settings, field) or tuple(layer + 1 for layer in whole_numbers(name, inner, field))
    return fitting_taps(name, taps or (2, layers // 2, layers - 3), layers)


def _notes(settings: Mapping[str, Any], inner: Mapping[str, Any], kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Notes on settings that trainers and engines read differently."""
    notes = []
    if inner.get("eagle_aux_hidden_state_layer_ids") and not settings.get("eagle_aux_hidden_state_layer_ids"):
        notes.append(
            "eagle_aux_hidden_state_layer_ids under eagle_config are read as SGLang reads them, the outputs of these layers; "
            "vLLM 0.32 takes the states before them."
        )
    if settings.get("norm_output"):
        notes.append(
            "norm_output is read as vLLM reads it: the normalised state is fed back. SpecForge up to August 2026 meant the norm "
            "before the head alone, and fed back the state itself."
        )
    if _ANGELSLIM in kinds and not settings.get("rope_scaling") and settings.get("rope_theta") not in (None, 10000):
        notes.append(
            f"rope_theta {settings['rope_theta']} is read as engines read it; AngelSlim's trainer of August 2026 turns at base "
            "10000 where rope_scaling is empty."
        )
    return tuple(notes)
