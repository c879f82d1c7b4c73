"""Intermediate models of a cascade: cheaper copies of the target, the small draft model, or a model loaded by name.

A copy has low-bit matrices, fewer layers, or both. On a CPU it runs with fewer operator calls (:func:`lean_copy`) and is
checked before use. On a GPU, kernel launches dominate a pass over few rows. So a copy is the model's own class with other
linear layers, captured in CUDA graphs (:func:`captured_copy`).

A pass over one to eight tokens costs as much as reading the weights, which low-bit matrices halve or quarter. The eight-bit
product scales each row by itself, the four-bit one scales none. So a row's result does not depend on the other rows. The
distribution after a text is thus the same however many drafted tokens are scored with it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import Layout, Product
from specviz.drafting.networks.fused_decoder import DecoderShape, FusedDecoder, FusedSession, LayerWeights
from specviz.drafting.networks.small_lm import SmallLM
from specviz.engine.cached import cached
from specviz.engine.interfaces import Target
from specviz.engine.stop import heed
from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.models.cost_curves import ModelCosts, target_costs
from specviz.models.heads.heads import SMALL, load_heads, named_draft
from specviz.models.hub.cache_dir import Progress
from specviz.models.packing import FewBitLinear, computes, eight_bits, rounded
from specviz.models.text.load import LoadedText
from specviz.targets.decoder import layer_weights, matrix
from specviz.targets.hybrid import CausalTarget
from specviz.targets.layers import FULL
from specviz.targets.text import TextTarget

GROUP = 32
"""Number of weights that share a scale and an offset in the four-bit layout."""
_SIDE = 8
_ROWS = 32
"""Sides of an integer product on a GPU must be multiples of ``_SIDE``, with at least ``_ROWS`` rows."""


def as_stored(weight: Tensor) -> Product:
    """Return a function that multiplies by the matrix in its own dtype; inputs and outputs keep theirs."""
    return lambda x: F.linear(x.to(weight.dtype), weight).to(x.dtype)


def integer_product(weight: Tensor) -> Product:
    """Like :func:`eight_bits`, but with torch's own integer product, which also runs on GPUs.

    The integer product requires more than 16 rows and sides that are multiples of 8, so inputs are padded with zeros. Padding
    costs little, because reading the weights dominates.
    """
    rows, columns = weight.shape
    integers, scale = rounded(weight)
    padded = F.pad(integers.to(torch.int8), (0, -columns % _SIDE, 0, -rows % _SIDE)).T

    def product(x: Tensor) -> Tensor:
        wide, share = rounded(x)
        most = max(_ROWS, len(x) + -len(x) % _SIDE)
        sums = torch._int_mm(F.pad(wide.to(torch.int8), (0, -columns % _SIDE, 0, most - len(x))), padded)[: len(x), :rows]
        return (sums.float() * scale[:, 0] * share).to(x.dtype)

    return product


def four_bits(weight: Tensor) -> Product:
    """Return a function that multiplies by the matrix in half a byte per weight, with a scale and an offset per 32 weights."""
    rows, columns = weight.shape
    wide = weight.detach().float().view(rows, columns // GROUP, GROUP)
    low, high = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp_min(1e-12)
    integers = ((wide - low) / scale).round_().clamp_(0, 15).to(torch.int32).view(rows, columns)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)
    # The kernel's zero point is the middle of the sixteen steps.
    both = torch.stack((scale[..., 0], low[..., 0] + 8 * scale[..., 0]), -1).transpose(0, 1)
    scales = both.contiguous().to(torch.bfloat16)

    def product(x: Tensor) -> Tensor:
        output = torch.ops.aten._weight_int4pack_mm_for_cpu(x.to(torch.bfloat16), packed, GROUP, scales)
        return output.to(x.dtype)

    return product


KINDS: dict[str, dict[str, tuple[Layout, Layout]]] = {
    "cpu": {"int8": (eight_bits, eight_bits), "int4": (four_bits, eight_bits)},
    "cuda": {"int8": (integer_product, integer_product)},
}
"""Layouts of a model's layers and of its head, by device type and kind. The head would lose the most accuracy in four bits."""


def layouts_of(kind: str, device: torch.device) -> tuple[Layout, Layout]:
    """Return the layouts of layers and head for this ``kind``. Raises ModelUnavailable if the machine has no kernel for it."""
    layouts = KINDS.get(device.type, {}).get(kind)
    if not layouts or not computes(layouts[0], torch.float32, device, 0.02 if kind == "int8" else 0.12):
        raise ModelUnavailable(
            f"This torch has no {kind} product for {device}: choose another intermediate model, such as small_draft, or run on "
            "a device that has one."
        )
    return layouts


_APART = {torch.float64: 1e-3, torch.float32: 1e-2}
"""Largest allowed relative error of the plain copy's logits, by dtype; 0.15 for half precision, which rounds more coarsely."""


def lean_copy(
    target: CausalTarget,
    layouts: tuple[Layout, Layout] = (as_stored, as_stored),
    layer_numbers: Sequence[int] | None = None,
    group: int = 1,
    devices: Sequence[torch.device] = (),
    progress: Callable[[float], None] = lambda share: None,
) -> FusedDecoder:
    """Copy the target's model with its layers and head in these ``layouts``, and only the layers ``layer_numbers`` (None: all).

    ``group``: maximum number of layers whose attention may run in parallel. ``devices``: devices for the layers in turn; by
    default, the model's. ``progress``: function that receives the share of matrices packed so far. Raises ModelUnavailable if the
    architecture is not supported.
    """
    shape, layers, ends = read(target, devices)
    # On a CPU, the int8 product takes and returns float32.
    half = target.dtype in (torch.bfloat16, torch.float16) and target.device.type == "cpu"
    chosen = layers if layer_numbers is None else [layers[number] for number in layer_numbers]
    count, total = itertools.count(), 4 * len(chosen) + 1 + (len(chosen) // group if group > 1 else 0)

    def stepwise(layout: Layout) -> Layout:
        def lay_out(weight: Tensor) -> Product:
            heed()
            progress(min(1.0, next(count) / total))
            return layout(weight)

        return lay_out

    return FusedDecoder(
        shape, chosen, ends, (stepwise(layouts[0]), stepwise(layouts[1])), torch.float32 if half else target.dtype, group
    )


def check_copy(target: CausalTarget) -> None:
    """Raise ModelUnavailable unless the plain copy of this model reproduces the model's logits."""
    decoder = lean_copy(target)
    words = [target.vocab_size * share // 9 for share in (4, 2, 7, 5, 3, 6)]
    tree = DraftTree.of(words, (-1, 0, 1, 1, 2, 0), target.device)
    session, target_session = FusedSession(decoder, 16), target.open(16)
    copy_logits, target_logits = session.score(tree).logits.float(), target_session.score(tree).logits.float()
    target_session.close()
    # The median, because in half precision a single row may depend strongly on rounding.
    difference = float(((copy_logits - target_logits).norm(dim=-1) / target_logits.norm(dim=-1)).median())
    if not difference < _APART.get(target.dtype, 0.15):
        raise _other_build(target, f"a plain copy's logits are {100 * difference:.0f} % off")


def read(
    target: CausalTarget, devices: Sequence[torch.device] = ()
) -> tuple[DecoderShape, list[LayerWeights], tuple[Tensor, Tensor, Tensor]]:
    """Return the model's shape, layers, and (embedding, last norm, head).

    Raises ModelUnavailable if the architecture is not supported.
    """
    config = target.config
    if target.number_format == torch.int8:
        raise _other_build(target, "its matrices are stored only in int8; run it in another number format")
    if set(getattr(target, "kinds", ())) != {FULL}:
        raise _other_build(target, "not all of its layers attend to the whole text")
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
    return LayerWeights(number=number, device=device, **layer_weights(layer, shape.heads, shape.kv_heads)._asdict())


def _other_build(target: CausalTarget, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{target.name} cannot be copied in a cheaper form: {reason}. "
        "Name a smaller model with its tokenizer as the draft instead."
    )


def captured_copy(
    target: Target, layouts: tuple[Layout, Layout], layer_numbers: Sequence[int] | None = None, name: str = ""
) -> TextTarget:
    """Copy the target with its matrices in these ``layouts``, and only the layers ``layer_numbers`` (None: all).

    Raises ModelUnavailable for recurrent layers, several devices, or an unsupported architecture.
    """
    if not isinstance(target, TextTarget) or target.spread:
        raise ModelUnavailable(
            f"{target.name} has recurrent layers or is on several devices, which a copy does not support: choose another "
            "intermediate model, such as small_draft."
        )
    own = target.model
    shared = {id(tensor): tensor for tensor in (*own.parameters(), *own.buffers())}
    model = copy.deepcopy(own, shared)
    layers = getattr(model.get_decoder(), "layers", ())
    if len(layers) != len(target.kinds):
        raise ModelUnavailable(f"{target.name} cannot be copied in a cheaper form: its layers were not found where expected.")
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
    """Forward pass of a layer that is left out. The layer keeps its number, which indexes hidden states and the cache."""
    return hidden_states


TITLES = {
    "int4": "the target in 4 bits",
    "int8": "the target in 8 bits",
    "fewer_layers": "the target in 4 bits without two of its layers",
    "plain_copy": "the target in its own number format, run with fewer operations",
    "small_draft": "the small draft model",
}
CAPTURED = {"int8": TITLES["int8"], "fewer_layers": "the target in 8 bits without two of its layers"}
"""Copies on a GPU, where the model's own class is captured in CUDA graphs and 4-bit products are missing."""
TIMED = (1, 4, 16, 32)
"""Rows of the passes that are timed before an intermediate model first runs."""
LEFT_OUT = 2
"""Number of layers that ``fewer_layers`` omits."""


def intermediate_model(
    make: Callable[..., Any], kind: str, draft: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress
) -> Any:
    """Return an intermediate model of this ``kind``: a key of TITLES, or "draft" for the model named ``draft``.

    ``make``: class of the result, called with kind, title, network, ``target``, function that returns the costs, and warnings.
    Raises ModelUnavailable if the machine or the target's architecture does not support the kind.
    """
    unit = target_costs(target, progress)
    if kind == "draft":
        if not draft or draft in TITLES:
            raise ModelUnavailable(
                "No intermediate model was named. Name one with the target's tokenizer as the draft, such as qwen2.5-coder-0.5b "
                "for qwen2.5-coder-1.5b, or choose another kind of intermediate model."
            )
        named, warnings = named_draft(draft, loaded, target, progress)
        return make(kind, named.name, named, target, target_costs(named, progress, unit).curve, warnings)
    title = TITLES[kind]
    facts = {"model": f"{target.name} of {target.vocab_size} tokens", "kind": kind, "dtype": str(target.dtype)}
    if kind == "small_draft":
        network = load_heads(SMALL, None, loaded, target)
    elif target.device.type != "cpu" and kind in CAPTURED:
        title, facts["tier"] = CAPTURED[kind], target.tier
        progress(f"Making {title}", None)
        network = cached(
            target.model,
            ("captured", kind, target.tier),
            lambda: captured_copy(target, layouts_of("int8", target.device), _chosen(kind, target), title),
        )
    else:
        network = cached(target.model, ("copy", kind), lambda: _copy(kind, target, progress))
    model = make(kind, title, network, target, lambda: costs.curve())
    costs: ModelCosts = ModelCosts(facts, model, progress, TIMED, kind == "small_draft", unit)
    return model


def layer_parallel(
    kind: str, group: int, draft: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress
) -> tuple[str, SmallLM | FusedDecoder, tuple[str, ...]]:
    """Return name, network and warnings of a draft model that may run the attention of up to ``group`` layers in parallel.

    ``kind``: "small_draft", "copy" for the target in 8 bits, or "draft" for the model named ``draft``, whose layers are assigned
    to several GPUs in turn. Raises ModelUnavailable if the model is missing or not named, or its architecture is not supported.
    """
    if kind == "copy":
        check_copy(target)
        layouts, making = layouts_of("int8", target.device), f"Making {TITLES['int8']}"
        decoder = cached(
            target.model,
            ("side by side", group),
            lambda: lean_copy(target, layouts, None, group, progress=lambda share: progress(making, share)),
        )
        return TITLES["int8"], decoder, ()
    if kind == "draft" and not draft:
        raise ModelUnavailable("EasySpec's drafter is to be the model that you name as the draft. Name one, or choose auto.")
    if kind == "draft" and draft and draft != SMALL:
        model, warnings = named_draft(draft, loaded, target, progress)
        check_copy(model)
        count, first = torch.cuda.device_count() if model.device.type == "cuda" else 0, model.device.index or 0
        spread = [torch.device("cuda", (first + number) % count) for number in range(count)]
        return model.name, lean_copy(model, group=group, devices=spread), warnings
    return SMALL, load_heads(SMALL, None, loaded, target), ()


def _copy(kind: str, target: CausalTarget, progress: Progress) -> FusedDecoder:
    making = f"Making {TITLES[kind]}"
    progress(making, None)
    check_copy(target)
    if kind == "plain_copy":
        return lean_copy(target)
    layouts = layouts_of("int8" if kind == "int8" else "int4", target.device)
    return lean_copy(target, layouts, _chosen(kind, target), progress=lambda share: progress(making, share))


def _chosen(kind: str, target: CausalTarget) -> list[int] | None:
    """Return the numbers of the layers in a copy of this kind, or None for all."""
    if kind != "fewer_layers":
        return None
    layers = int(target.config.num_hidden_layers)
    if layers < 3 * LEFT_OUT:
        raise ModelUnavailable(f"{target.name} has only {layers} layers: choose another intermediate model, such as int8.")
    first = layers // 2 - LEFT_OUT // 2
    return [number for number in range(layers) if not first <= number < first + LEFT_OUT]
