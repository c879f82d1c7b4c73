"""Cheaper copies of a loaded model: low-bit matrices, skipped layers, or both.

On a CPU a copy runs with fewer operations (:func:`lean_copy`), and is checked before use. On a GPU kernel launches dominate a
pass over few rows: there a copy is the model's own class with other linear layers, captured in CUDA graphs like a target
(:func:`captured_copy`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specviz.drafting.networks.attention import Layout, Product
from specviz.drafting.networks.fused_decoder import DecoderShape, LayerWeights, LeanDecoder
from specviz.drafting.networks.fused_session import LeanSession
from specviz.engine.interfaces import Target
from specviz.engine.stop import heed
from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.models.heads.quantisation import as_stored
from specviz.targets.hybrid import CausalTarget
from specviz.targets.layers import FULL
from specviz.targets.text import TextTarget

_APART = {torch.float64: 1e-3, torch.float32: 1e-2}
"""Largest allowed relative error of the plain copy's logits, by dtype. Half precision (bfloat16, float16) rounds far more
coarsely: 0.15."""


def lean_copy(
    target: CausalTarget,
    layouts: tuple[Layout, Layout] = (as_stored, as_stored),
    layer_numbers: Sequence[int] | None = None,
    group: int = 1,
    devices: Sequence[torch.device] = (),
    progress: Callable[[float], None] = lambda share: None,
) -> LeanDecoder:
    """Copy the target's model with its layers and head in these ``layouts``, and only the layers ``layer_numbers`` (None: all).

    ``group`` layers may run their attention in parallel, the layers in turn on ``devices``, by default where the model has them.
    ``progress`` receives the share of matrices laid out so far. Raises ModelUnavailable for an unsupported architecture.
    """
    shape, layers, ends = read(target, devices)
    # On a CPU the int8 product takes and returns float32.
    half = target.dtype in (torch.bfloat16, torch.float16) and target.device.type == "cpu"
    chosen = layers if layer_numbers is None else [layers[number] for number in layer_numbers]
    count, total = itertools.count(), 4 * len(chosen) + 1 + (len(chosen) // group if group > 1 else 0)

    def stepwise(layout: Layout) -> Layout:
        def lay_out(weight: Tensor) -> Product:
            heed()
            progress(min(1.0, next(count) / total))
            return layout(weight)

        return lay_out

    return LeanDecoder(
        shape, chosen, ends, (stepwise(layouts[0]), stepwise(layouts[1])), torch.float32 if half else target.dtype, group
    )


def check_copy(target: CausalTarget) -> None:
    """Raise ModelUnavailable unless the plain copy of this model gives the model's logits."""
    decoder = lean_copy(target)
    words = [target.vocab_size * share // 9 for share in (4, 2, 7, 5, 3, 6)]
    tree = DraftTree.of(words, (-1, 0, 1, 1, 2, 0), target.device)
    session, target_session = LeanSession(decoder, 16), target.open(16)
    copy_logits, target_logits = session.score(tree).logits.float(), target_session.score(tree).logits.float()
    target_session.close()
    # The median: in half precision a single row may depend strongly on rounding.
    difference = float(((copy_logits - target_logits).norm(dim=-1) / target_logits.norm(dim=-1)).median())
    if not difference < _APART.get(target.dtype, 0.15):
        raise _other_build(target, f"a plain copy's logits are {100 * difference:.0f} % off")


def read(
    target: CausalTarget, devices: Sequence[torch.device] = ()
) -> tuple[DecoderShape, list[LayerWeights], tuple[Tensor, Tensor, Tensor]]:
    """Return the model's shape, its layers, and its embedding, last norm and head. Raises ModelUnavailable for an unsupported
    architecture."""
    config = target.config
    if set(getattr(target, "kinds", ())) != {FULL}:
        raise _other_build(target, "its layers do not all see the whole text")
    try:
        body = target.model.model
        rates = body.rotary_emb.inv_freq
        shape = DecoderShape(
            vocab_size=target.vocab_size,
            hidden=int(config.hidden_size),
            heads=int(config.num_attention_heads),
            kv_heads=int(config.num_key_value_heads),
            head_size=2 * len(rates),
            layers=len(body.layers),
            eps=float(config.rms_norm_eps),
            context_length=target.context_length,
            rates=tuple(rates.double().tolist()),
            scaling=float(getattr(body.rotary_emb, "attention_scaling", 1.0)),
        )
        layers = [
            _layer(number, layer, shape, devices[number % len(devices)] if devices else layer.input_layernorm.weight.device)
            for number, layer in enumerate(body.layers)
        ]
        ends = (body.embed_tokens.weight, body.norm.weight, matrix(target.model.get_output_embeddings()))
    except AttributeError as problem:
        raise _other_build(target, f"it has {problem}") from problem
    return shape, layers, ends


def _layer(number: int, layer: Any, shape: DecoderShape, device: torch.device) -> LayerWeights:
    heed()
    attention, mlp = layer.self_attn, layer.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [part.bias for part in parts if part.bias is not None]
    norms = None
    if hasattr(attention, "q_norm"):
        queries = attention.q_norm.weight.expand(shape.heads, -1)
        norms = torch.cat((queries, attention.k_norm.weight.expand(shape.kv_heads, -1)))
    return LayerWeights(
        number=number,
        before=layer.input_layernorm.weight,
        entering=torch.cat([matrix(part) for part in parts]),
        leaving=matrix(attention.o_proj),
        between=layer.post_attention_layernorm.weight,
        widening=torch.cat((matrix(mlp.gate_proj), matrix(mlp.up_proj))),
        narrowing=matrix(mlp.down_proj),
        device=device,
        bias=torch.cat(biases) if biases else None,
        turning=norms,
    )


def matrix(linear: Any) -> Tensor:
    """A linear layer's matrix [out, in], unpacked if only its packed form is left."""
    packed = getattr(linear, "packed", None)
    return linear.weight if packed is None or linear.weight is not None else packed.to_dense()


def _other_build(target: CausalTarget, why: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{target.name} cannot be copied in a cheaper form: {why}. Name a smaller model with its tokenizer as the draft instead."
    )


class FewBitLinear(nn.Module):
    """A frozen linear layer with its matrix in this ``layout``."""

    def __init__(self, linear: nn.Linear, layout: Layout) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.product = layout(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        output = self.product(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return output if self.bias is None else output + self.bias


def captured_copy(
    target: Target, layouts: tuple[Layout, Layout], layer_numbers: Sequence[int] | None = None, name: str = ""
) -> TextTarget:
    """Copy the target with its layers' and its head's matrices in these ``layouts``, and only the layers ``layer_numbers``
    (None: all). Raises ModelUnavailable for a target with recurrent layers, over several devices, or of an unsupported
    architecture.
    """
    if not isinstance(target, TextTarget) or target.spread:
        raise ModelUnavailable(
            f"{target.name} has recurrent layers or lies on several devices, and a copy of it would have neither: choose another "
            "intermediate model, such as small_draft."
        )
    own = target.model
    shared = {id(tensor): tensor for tensor in (*own.parameters(), *own.buffers())}
    model = copy.deepcopy(own, shared)
    layers = getattr(model.get_decoder(), "layers", ())
    if len(layers) != len(target.kinds):
        raise ModelUnavailable(f"{target.name} cannot be copied in a cheaper form: its layers are not where they are looked for.")
    skipped = [layer for number, layer in enumerate(layers) if layer_numbers is not None and number not in layer_numbers]
    for layer in skipped:
        layer.forward = _unchanged
    left_out, head = {id(module) for layer in skipped for module in layer.modules()}, model.get_output_embeddings()
    for module in list(model.modules()):
        for part, child in list(module.named_children()):
            if type(child) is nn.Linear and id(child) not in left_out:
                heed()
                setattr(module, part, FewBitLinear(child, layouts[child is head]))
    return TextTarget(model, name or target.name, sorted(target.eos_ids), target.tier)


def _unchanged(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """The forward pass of a layer that is left out: it keeps its number, which hidden states and the cache go by."""
    return hidden_states
