"""EAGLE-3 heads as their authors publish them, mapped onto our network: Li et al. 2025 (arXiv 2503.01840).

The layout: ``midlayer.*`` (one decoder layer twice as wide on its input), ``fc``, ``norm``, ``lm_head`` over a draft
vocabulary, ``d2t`` (how far each of its rows lies from the token it stands for) and ``t2d`` (which tokens it has).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specviz.drafters.feature_net import FeatureConfig, FeatureNet
from specviz.errors import ModelUnavailable
from specviz.models.published import Fit, Repository, refuse_strangers, shaped


def feature_net(stored: Repository, target: Fit) -> FeatureNet:
    """The network of published EAGLE-3 heads, in the target's number format, on the target's embedding.

    Raises ModelUnavailable naming the tensor or setting that does not fit.
    """
    names = {_plain(name): name for name in stored.files}
    config = _feature_config(stored, target, names)
    for name, shape in _sizes(config).items():  # before a config that is wrong makes us reserve room for it
        shaped(stored, names, name, shape)
    head, ids = _head_and_ids(stored, target, names)
    net = FeatureNet(config, target.embedding, head, ids)
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


def _feature_config(stored: Repository, target: Fit, names: Mapping[str, str]) -> FeatureConfig:
    hidden, heads = _number(stored, "hidden_size"), _number(stored, "num_attention_heads")
    read = _number(stored, "target_hidden_size", hidden)
    if (hidden, read) != (target.hidden, target.hidden):
        raise ModelUnavailable(
            f"{stored.name} was made for hidden states {read} wide and is {hidden} wide itself, and those of {target.name} "
            f"are {target.hidden}: choose the target it was trained for."
        )
    if _number(stored, "num_hidden_layers", 1) != 1 or stored.config.get("hidden_act", "silu") != "silu":
        raise ModelUnavailable(f"{stored.name} is not one layer with SiLU, as EAGLE-3 heads are. Choose other heads.")
    if "layer.self_attn.q_proj.weight" not in names:
        raise ModelUnavailable(f"{stored.name} lacks midlayer.self_attn.q_proj.weight: these are no EAGLE-3 heads.")
    rows = stored.tensor(names["layer.self_attn.q_proj.weight"]).shape[0]
    kv_heads = _number(stored, "num_key_value_heads", heads)
    # Often not hidden / heads, and then not always in the config either.
    size = _number(stored, "head_dim", max(1, rows // heads))
    if heads % kv_heads or size % 2:
        raise ModelUnavailable(
            f"{stored.name} has {heads} heads of {size} on {kv_heads}, which its config.json has wrong."
        )
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
        raise ModelUnavailable(
            f"The config.json of {stored.name} has no {field}: these are no EAGLE-3 heads as published."
        )
    return value


def _taps(stored: Repository, layers: int) -> tuple[int, ...]:
    """The target's hidden states it reads, counted as transformers does; published configs count in two ways."""
    listed, inner = stored.config.get("eagle_aux_hidden_state_layer_ids"), stored.config.get("eagle_config")
    if not listed and isinstance(
        inner, Mapping
    ):  # here a number names a layer, and its output is the next hidden state
        listed = [int(layer) + 1 for layer in inner.get("eagle_aux_hidden_state_layer_ids") or ()]
    found = tuple(int(tap) for tap in listed or (2, layers // 2, layers - 3))
    if len(found) != 3 or not all(0 <= tap <= layers for tap in found):
        raise ModelUnavailable(f"{stored.name} reads hidden states {list(found)} of a target with {layers} layers.")
    return found


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


def _head_and_ids(stored: Repository, target: Fit, names: Mapping[str, str]) -> tuple[Tensor, Tensor | None]:
    """The head's rows, and which token each stands for (None: every token, in order)."""
    vocab = target.embedding.shape[0]
    embedded = names.get("embed_tokens.weight")
    if embedded is not None:
        shaped(stored, names, "embed_tokens.weight", tuple(target.embedding.shape))
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
