"""Reader of published EAGLE-3 heads onto our network: Li et al. 2025 (arXiv 2503.01840).

The layout: ``midlayer.*`` (one decoder layer twice as wide on its input), ``fc``, ``norm``, ``lm_head`` over a draft
vocabulary, ``d2t`` (how far each of its rows lies from the token it stands for) and ``t2d`` (which tokens it has).
Settings that change the arithmetic without adding a tensor are refused by name, and so is any that is not known: what
they mean is taken from SafeAILab/EAGLE, sgl-project/SpecForge, vllm-project/speculators, vLLM and NVIDIA's Model-Optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specviz.drafters.networks.feature_net import FeatureConfig, FeatureNet
from specviz.errors import ModelUnavailable
from specviz.models.hub.published import Fit, Repository, refuse_strangers, shaped

_OURS = "Choose heads in the layout of EAGLE's authors, or leave the draft empty."
_STRANGE = {
    "norm_before_residual": "adds the normalised hidden state to what attention saw, where our layer adds the state itself",
    "norm_before_fc": "normalises the target's hidden states together before fc, which our network does not",
    "fc_norm": "normalises each of the target's hidden states before fc (EAGLE-3.1), which our network does not",
    "norm_output": (
        "feeds the normalised state back (EAGLE-3.1), which our network does not; only in SpecForge before September 2026 "
        "did it mean the norm before the head, which we have: if these heads are as old, take it out of a copy of the file"
    ),
    "use_sliding_window": "lets attention see a window alone, where ours sees the whole text",
    "attention_bias": "adds a bias in attention, which our layer has not",
    "qkv_bias": "adds a bias in attention, which our layer has not",
    "mlp_bias": "adds a bias in the feed-forward layer, which ours has not",
    "quantization_config": "says that the weights are quantised, and we read plain ones",
}
"""Settings whose truthy value means arithmetic that :class:`FeatureNet` does not have, and what they do."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "logit_scale": (1,),
    "model_type": ("llama", "mistral", "qwen2", "qwen3"),
    "num_hidden_layers": (1,),
    "partial_rotary_factor": (1,),
    "position_embedding_type": ("rope",),
    "eagle_config.next_layer_regular": (True,),
    "eagle_config.parallel_draft_step": (0, 1),
    "eagle_config.use_aux_hidden_state": (True,),
    "eagle_config.use_input_layernorm_in_first_layer": (True,),
    "eagle_config.use_last_layernorm": (True,),
}
"""Settings that say what our network does anyway, with the values that do, unset aside."""
_READ = frozenset(
    """hidden_size target_hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size rms_norm_eps
    rope_theta rope_scaling rope_parameters max_position_embeddings eagle_aux_hidden_state_layer_ids eagle_config layer_types
    sliding_window tie_word_embeddings architectures eagle_config.eagle_aux_hidden_state_layer_ids""".split()
)
"""Settings that are read, here or below."""
_HARMLESS = frozenset(
    """_name_or_path attention_dropout auto_map bos_token_id chunk_size_feed_forward decoder_sparse_step
    draft_vocab_size dtype embed_requires_grad eos_token_id id2label
    initializer_range is_decoder label2id length_penalty max_length max_window_layers min_length num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states pad_token_id pretraining_tp repetition_penalty
    return_dict speculators_version target_model_type temperature top_k top_p torch_dtype transformers_version typical_p
    use_cache vocab_size eagle_config.parallel_draft_heads_num_layers""".split()
)
"""Settings that change nothing of a forward pass: names, ids, training, how a text would be generated, how products are cut."""


def feature_net(stored: Repository, target: Fit) -> FeatureNet:
    """The network of published EAGLE-3 heads, in the target's number format, on its own embedding or else the target's.

    Raises ModelUnavailable naming the tensor or setting that does not fit.
    """
    names = {_plain(name): name for name in stored.files}
    _refuse_other_arithmetic(stored, names)
    config = _feature_config(stored, target, names)
    for name, shape in _sizes(config).items():  # before a config that is wrong makes us reserve room for it
        shaped(stored, names, name, shape)
    head, ids = _head_and_ids(stored, target, names)
    net = FeatureNet(config, _embedding(stored, target, names), head, ids)
    own = {name: tuple(value.shape) for name, value in net.state_dict().items() if name != "fc.scale"}
    known = {*own, "lm_head.weight", "d2t", "t2d", "embed_tokens.weight"}
    refuse_strangers(stored, names, known, "EAGLE-3")
    tensors = {name: shaped(stored, names, name, shape).to(target.head) for name, shape in own.items()}
    net.load_state_dict({**tensors, "fc.scale": torch.ones(net.fc.in_features)})
    return net.to(target.head.device, target.head.dtype).eval().requires_grad_(False)


def _plain(name: str) -> str:
    """A published name as our network spells it."""
    for start in ("model.", "midlayer.", "layers.0."):
        if name.startswith(start):
            name = name.removeprefix(start) if start == "model." else "layer." + name.removeprefix(start)
    return name


def _refuse_other_arithmetic(stored: Repository, names: Mapping[str, str]) -> None:
    """Raise ModelUnavailable where the config.json says that something else is computed than :class:`FeatureNet` does."""
    config, name = stored.config, stored.name
    if "speculators_model_type" in config or "transformer_layer_config" in config:
        flags = [flag for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output") if config.get(flag)]
        sets = f", and sets {' and '.join(flags)}, which our network does not compute" if flags else ""
        raise ModelUnavailable(
            f"{name} is stored in the layout of the speculators library (transformer_layer_config){sets}. That layout is not "
            f"read yet. {_OURS}"
        )
    kinds = [kind for kind in config.get("architectures") or () if "eagle3" not in str(kind).lower()]
    if strange := [kind for kind in kinds if kind != "LlamaForCausalLM"]:
        raise ModelUnavailable(f"{name} is a {strange[0]} (architectures), not EAGLE-3 heads. {_OURS}")
    inner = config.get("eagle_config")
    inner = {f"eagle_config.{field}": value for field, value in inner.items()} if isinstance(inner, Mapping) else {}
    for field, value in {**config, **inner}.items():
        if field in _READ or field in _HARMLESS or value is None or value in _NEUTRAL.get(field, ()):
            continue
        if field in _NEUTRAL:
            known = " or ".join(str(neutral) for neutral in _NEUTRAL[field])
            raise ModelUnavailable(f"{name} has {field} {value!r}, and our network computes {known}. {_OURS}")
        if value and field in _STRANGE:
            raise ModelUnavailable(f"{name} sets {field}: it {_STRANGE[field]}. {_OURS}")
        if value:
            raise ModelUnavailable(
                f"{name} sets {field} to {str(value)[:60]!r} in its config.json, which our reader does not know and will not "
                f"leave out. {_OURS} If it changes nothing of what is computed, take it out of a copy of the file."
            )
    _refuse_windows(stored)
    if config.get("tie_word_embeddings") and "embed_tokens.weight" in names and "lm_head.weight" not in names:
        raise ModelUnavailable(f"{name} ties its head to an embedding of its own, which is not read yet. {_OURS}")


def _refuse_windows(stored: Repository) -> None:
    """A sliding window is named by layer, or by its width alone unless another setting says that it is not used."""
    kinds, width = stored.config.get("layer_types"), stored.config.get("sliding_window")
    sliding = any(kind != "full_attention" for kind in kinds) if kinds else (
        bool(width) and stored.config.get("use_sliding_window") is not False
    )  # fmt: skip
    if sliding:
        raise ModelUnavailable(
            f"{stored.name} has {'layer_types ' + str(kinds) if kinds else f'a sliding_window of {width}'}: its attention sees "
            f"a window alone, and ours the whole text. {_OURS}"
        )


def _feature_config(stored: Repository, target: Fit, names: Mapping[str, str]) -> FeatureConfig:
    hidden, heads = _number(stored, "hidden_size"), _number(stored, "num_attention_heads")
    target_width = _number(stored, "target_hidden_size", hidden)
    if (hidden, target_width) != (target.hidden, target.hidden):
        raise ModelUnavailable(
            f"{stored.name} was made for hidden states {target_width} wide and is {hidden} wide itself, and those of "
            f"{target.name} are {target.hidden}: choose the target it was trained for."
        )
    if "layer.self_attn.q_proj.weight" not in names:
        raise ModelUnavailable(f"{stored.name} lacks midlayer.self_attn.q_proj.weight: these are no EAGLE-3 heads.")
    rows = stored.tensor(names["layer.self_attn.q_proj.weight"]).shape[0]
    kv_heads = _number(stored, "num_key_value_heads", heads)
    # Often not hidden / heads, and then not always in the config either.
    size = _number(stored, "head_dim", max(1, rows // heads))
    if heads % kv_heads or size % 2:
        raise ModelUnavailable(f"{stored.name} has {heads} heads of {size} on {kv_heads}, which its config.json has wrong.")
    theta, rates = _rotary(stored, size)
    return FeatureConfig(
        vocab_size=target.embedding.shape[0],
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        inner=_number(stored, "intermediate_size"),
        taps=_taps(stored, target.layers),
        wide=True,
        theta=theta,
        eps=float(stored.config.get("rms_norm_eps", 1e-6)),
        bias="fc.bias" in names,
        rates=rates,
    )


def _sizes(config: FeatureConfig) -> dict[str, tuple[int, ...]]:
    """The matrices whose shapes the config decides."""
    wide = 2 * config.hidden
    return {
        "fc.weight": (config.hidden, len(config.taps) * config.hidden),
        "layer.self_attn.q_proj.weight": (config.heads * config.head_size, wide),
        "layer.self_attn.k_proj.weight": (config.kv_heads * config.head_size, wide),
        "layer.mlp.gate_proj.weight": (config.inner, config.hidden),
    }


def _number(stored: Repository, field: str, otherwise: int | None = None) -> int:
    value = stored.config.get(field)
    value = otherwise if value is None else value
    if not isinstance(value, int) or value < 1:
        raise ModelUnavailable(f"The config.json of {stored.name} has no {field}: these are no EAGLE-3 heads as published.")
    return value


def _taps(stored: Repository, layers: int) -> tuple[int, ...]:
    """The target's hidden states it reads, counted as transformers does; published configs count in two ways."""
    layer_ids, inner = stored.config.get("eagle_aux_hidden_state_layer_ids"), stored.config.get("eagle_config")
    if not layer_ids and isinstance(inner, Mapping):  # here a number names a layer, and its output is the next hidden state
        layer_ids = [int(layer) + 1 for layer in inner.get("eagle_aux_hidden_state_layer_ids") or ()]
    taps = tuple(int(tap) for tap in layer_ids or (2, layers // 2, layers - 3))
    if len(taps) != 3 or not all(0 <= tap <= layers for tap in taps):
        raise ModelUnavailable(f"{stored.name} reads hidden states {list(taps)} of a target with {layers} layers.")
    return taps


def _rotary(stored: Repository, size: int) -> tuple[float, tuple[float, ...]]:
    """Base of the rotary positions, and their rates where those are not simply the base's."""
    rope = dict(stored.config.get("rope_parameters") or stored.config.get("rope_scaling") or {})
    theta = float(rope.pop("rope_theta", None) or stored.config.get("rope_theta") or 10000.0)
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind == "default":
        return theta, ()
    if kind not in {"linear", "llama3"}:
        raise ModelUnavailable(f"{stored.name} has {kind} rotary positions, which our drafter cannot follow.")
    longest = _number(stored, "max_position_embeddings", 2048)
    config = LlamaConfig(head_dim=size, rope_theta=theta, rope_scaling=rope, max_position_embeddings=longest)
    rates, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return theta, tuple(rates.double().tolist())


def _embedding(stored: Repository, target: Fit, names: Mapping[str, str]) -> Tensor:
    """The heads' own embedding where they bring one, which may have been trained; the target's where it is the same."""
    if "embed_tokens.weight" not in names:
        return target.embedding
    own = shaped(stored, names, "embed_tokens.weight", tuple(target.embedding.shape)).to(target.embedding)
    return target.embedding if torch.equal(own, target.embedding) else own


def _head_and_ids(stored: Repository, target: Fit, names: Mapping[str, str]) -> tuple[Tensor, Tensor | None]:
    """The head's rows, and which token each stands for (None: every token, in order)."""
    vocab = target.embedding.shape[0]
    ids = _draft_ids(stored, names, vocab) if "d2t" in names else None
    if "lm_head.weight" not in names:
        return target.head, ids
    rows = vocab if ids is None else len(ids)
    return shaped(stored, names, "lm_head.weight", (rows, target.hidden)).to(target.head), ids


def _draft_ids(stored: Repository, names: Mapping[str, str], vocab: int) -> Tensor:
    """``d2t`` holds, for each row of the head, how far its token lies from the row's own number."""
    offsets = stored.tensor(names["d2t"]).long()
    ids = offsets + torch.arange(len(offsets))
    good = offsets.ndim == 1 and bool((ids >= 0).all()) and bool((ids < vocab).all()) and len(ids.unique()) == len(ids)
    if good and "t2d" in names:
        known = stored.tensor(names["t2d"]).bool()
        good = len(known) <= vocab and int(known.sum()) == len(ids) and bool(known[ids.clamp(max=len(known) - 1)].all())
    if not good:
        raise ModelUnavailable(
            f"The draft vocabulary of {stored.name} (d2t, t2d) is not one of the target's {vocab} tokens: choose the target "
            "these heads were trained for."
        )
    return ids
