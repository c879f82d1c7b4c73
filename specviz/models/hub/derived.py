"""Hybrids derived from a fetched model: the shipped file holds the change that training learned, all else is the base's.

A hybrid has Mamba-2 mixers in place of some attention layers. They start as in MambaInLlama (Wang et al., arXiv 2408.15237):
x is V, B is K, C is Q, and the output projection is O. Low-rank factors change these matrices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BambaConfig, BambaForCausalLM

from specviz.drafting.networks.lora import TALL, WIDE, merge_lora
from specviz.drafting.networks.weights import read_weights
from specviz.errors import ModelUnavailable
from specviz.models.cache import exclusive_loading
from specviz.models.hub.opening import LOCAL

_SAME = (
    "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings",
)  # fmt: skip
_RENAMED = (("mlp.", "feed_forward."), ("post_attention_layernorm", "pre_ff_layernorm"), ("model.norm", "model.final_layernorm"))
"""Names of a Llama's tensors, and of Bamba's."""
_OPEN = 1.278
"""Bias of a gate at which its SiLU is 1."""
_FASTEST, _SLOWEST = 1.0, 0.01
"""Initial time steps of the heads; with decay rate 1, a head remembers about their inverse in tokens."""
_VOLUME = 0.1
"""Initial weight of a mixer's norm."""


def hybrid(base: Any, shape: Mapping[str, Any]) -> Any:
    """Return a Bamba model with the weights of ``base``, a Llama, and new mixers in all layers but ``attn_layer_indices``.

    ``shape``: further fields of the config. A layer with attention computes what it does in ``base``.
    """
    own = {name: getattr(base.config, name) for name in _SAME}
    rope = {**base.config.rope_parameters, "partial_rotary_factor": 1.0}
    model: Any = BambaForCausalLM(BambaConfig(**own, **shape, rope_parameters=rope)).to(base.dtype)
    state = base.state_dict()
    for old, new in _RENAMED:
        state = {name.replace(old, new): value for name, value in state.items()}
    model.load_state_dict(state, strict=False)
    for number, mixer in mixers(model).items():
        _start(mixer, base.model.layers[int(number)].self_attn)
    model.generation_config = base.generation_config
    return model.eval()


def mixers(model: Any) -> nn.ModuleDict:
    """Return the mixers of a hybrid by the numbers of their layers."""
    return nn.ModuleDict({str(i): layer.mamba for i, layer in enumerate(model.model.layers) if hasattr(layer, "mamba")})


@torch.no_grad()
def _start(mixer: Any, attention: Any) -> None:
    """Initialise a mixer from attention whose key-value heads, and their size, are the mixer's groups and its state size."""
    heads, groups, width = mixer.num_heads, mixer.n_groups, mixer.intermediate_size
    q, k, v, o = (getattr(attention, f"{name}_proj").weight for name in "qkvo")
    value = v.unflatten(0, (groups, -1)).repeat_interleave(heads // groups, 0).flatten(0, 1)
    query = q.unflatten(0, (groups, heads // groups, -1)).mean(1).flatten(0, 1)  # a group's heads share C
    mixer.in_proj.weight.copy_(torch.cat((q.new_zeros(width, q.shape[1]), value, k, query, q.new_zeros(heads, q.shape[1]))))
    mixer.out_proj.weight.copy_(o)
    for bias in (mixer.in_proj.bias, mixer.out_proj.bias, mixer.conv1d.bias, mixer.conv1d.weight, mixer.A_log):
        bias.zero_()
    mixer.in_proj.bias[:width] = _OPEN
    mixer.conv1d.weight[..., -1] = 1  # passes each token on alone
    step = torch.exp(torch.linspace(math.log(_SLOWEST), math.log(_FASTEST), heads))
    mixer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
    mixer.norm.weight.fill_(_VOLUME)


def unpack_derived(path: Path, base_folder: Path, folder: Path) -> tuple[str, ...]:
    """Unpack the hybrid in ``path``, whose base is in ``base_folder``, into ``folder`` as transformers saves it, in bfloat16.

    Raises ModelUnavailable if the file does not hold a change of this base.
    """
    tensors, card = read_weights(path)
    with exclusive_loading():
        base: Any = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32, **LOCAL)
        model = hybrid(base, json.loads(card["config"]))
        put(mixers(model), tensors, path.name)
        model.to(torch.bfloat16).save_pretrained(folder)
        AutoTokenizer.from_pretrained(base_folder, **LOCAL).save_pretrained(folder)
    return ()


@torch.no_grad()
def put(network: nn.Module, tensors: Mapping[str, Tensor], name: str) -> None:
    """Put learned ``tensors`` into ``network``, low-rank factors as changes. Raises ModelUnavailable if one does not fit."""
    factors = {key: value for key, value in tensors.items() if key.endswith((TALL, WIDE))}
    whole, known = {key: tensors[key] for key in tensors.keys() - factors.keys()}, dict(network.named_parameters())
    names = {key.removesuffix(TALL).removesuffix(WIDE) for key in tensors}
    if names != known.keys() or any(known[key].shape != value.shape for key, value in whole.items()):
        raise ModelUnavailable(f"{name} does not hold this model's weights: fetch the file again.")
    merge_lora(network, factors, name)
    network.load_state_dict(whole, strict=False)
