"""Reader of published DREAM drafters: Hu et al. 2025 (arXiv 2505.19201), SAI-Lab-NYU/DREAM.

The layout: ``layers.0.*`` without a norm on its input, ``layers.1.*`` the gated cross-attention, ``layers.2.*`` a decoder layer,
``norm``; embedding and head are the target's. The authors' release lets siblings of a tree read each other's thoughts, unlike
their training: a mask separates them here.
"""

from __future__ import annotations

from typing import Any

import torch

from specviz.drafting.networks.cross_net import CrossConfig, CrossNet
from specviz.errors import ModelUnavailable
from specviz.models.heads.head_settings import OURS, SIZES, positive, refuse_unknown, rotary, whole_number
from specviz.models.hub.published import Fit, Repository, refuse_strangers, shaped

KIND = "DREAM"
_NEUTRAL: dict[str, tuple[Any, ...]] = {"model_type": ("llama",), "dropout": (0.0,), "num_hidden_layers": (1, 3)}
_READ = SIZES - set(_NEUTRAL)
_PARTS = {"layers.0.": "first.", "layers.1.": "reading.", "layers.2.": "last."}
_GATES = ("layers.1.cross_attn_attn_gate", "layers.1.cross_attn_mlp_gate")


def is_dream(names: set[str]) -> bool:
    """Whether tensors of these names are a DREAM drafter."""
    return set(_GATES) <= names


def cross_net(stored: Repository, target: Fit) -> CrossNet:
    """Read the network on the target's embedding and head, in its number format.

    Raises ModelUnavailable naming the tensor or setting that does not fit.
    """
    name, settings = stored.name, stored.config
    refuse_unknown(name, settings, _READ, _NEUTRAL, {})
    hidden = whole_number(name, settings, "hidden_size")
    if hidden != target.hidden:
        raise ModelUnavailable(
            f"{name} was made for hidden states {hidden} wide, and those of {target.name} are {target.hidden}: choose the "
            "target it was trained for."
        )
    heads = whole_number(name, settings, "num_attention_heads")
    size = hidden // heads
    turning = rotary(stored, settings, size)
    if set(turning) - {"theta", "rates"}:
        raise ModelUnavailable(f"{name} has rotary positions in a form that its authors' code does not compute. {OURS}")
    config = CrossConfig(
        vocab_size=target.embedding.shape[0],
        hidden=hidden,
        heads=heads,
        kv_heads=whole_number(name, settings, "num_key_value_heads", heads),
        head_size=size,
        inner=whole_number(name, settings, "intermediate_size"),
        taps=(0, target.layers),
        wide=False,
        eps=positive(name, settings, "rms_norm_eps", 1e-6),
        entry_norm=False,
        inner_norms=True,
        sink=False,
        keep=1.0,
        **turning,
    )
    names = {_plain(original): original for original in stored.files}
    for part, rows in (("mlp.gate_proj", config.inner), ("self_attn.k_proj", config.kv_heads * size)):  # before it is built
        shaped(stored, names, f"first.{part}.weight", (rows, hidden))
    net = CrossNet(config, target.embedding, target.head)
    shapes = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    gates = [shaped(stored, names, gate, (1,)) for gate in _GATES]
    known = {*_GATES, *(key for key in shapes if key != "reading.gates")}
    refuse_strangers(stored, {key: own for key, own in names.items() if key != "embed_tokens.weight"}, known, KIND)
    tensors = {key: shaped(stored, names, key, shape) for key, shape in shapes.items() if key != "reading.gates"}
    net.load_state_dict({**tensors, "reading.gates": torch.cat(gates)})
    return net.to(target.head.device, target.head.dtype).eval().requires_grad_(False)


def _plain(name: str) -> str:
    """Our network's name of a published tensor; gates keep theirs."""
    if name in _GATES:
        return name
    for theirs, ours in _PARTS.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs).replace("cross_attn.", "self_attn.").replace(
                "self_attn.q_norm", "q_norm"
            ).replace("self_attn.k_norm", "k_norm")
    return name
