"""Loader of a cascade's intermediate models: made from the target, from the small draft model, or loaded by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from specviz.drafting.networks.fused_decoder import LeanDecoder
from specviz.drafting.networks.fused_session import LeanSession
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.runtimes.intermediate import FittedSession, IntermediateModel, SmallSession
from specviz.engine.cached import cached
from specviz.engine.interfaces import Target
from specviz.errors import ModelUnavailable
from specviz.models.cost_curves import ModelCosts, target_costs
from specviz.models.heads.heads import SMALL, load_heads, named_draft
from specviz.models.heads.quantised_copy import captured_copy, check_copy, layouts_of, lean_copy
from specviz.models.hub.cache_dir import Progress
from specviz.models.text.load import LoadedText
from specviz.targets.hybrid import CausalTarget

TITLES = {
    "int4": "the target in 4 bits",
    "int8": "the target in 8 bits",
    "fewer_layers": "the target in 4 bits without two of its layers",
    "plain_copy": "the target in its own numbers, run with fewer operations",
    "small_draft": "the small draft model",
}
CAPTURED = {"int8": TITLES["int8"], "fewer_layers": "the target in 8 bits without two of its layers"}
"""Copies made on a GPU, where the model's own class is captured in CUDA graphs; 4-bit products are missing there."""
TIMED = (1, 4, 16, 32)
"""Rows of the passes that are timed before an intermediate model first runs."""
LEFT_OUT = 2
"""Number of layers that ``fewer_layers`` omits."""


def intermediate_model(
    kind: str, draft: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress
) -> IntermediateModel:
    """Return the intermediate model of this ``kind``: a key of TITLES, or "draft" for the model named ``draft``.

    Raises ModelUnavailable if the machine or the target's architecture does not support it.
    """
    if kind == "draft":
        if not draft or draft in TITLES:
            raise ModelUnavailable(
                "Which is the intermediate model? Name one with the target's tokenizer as the draft, such as qwen2.5-coder-0.5b "
                "for qwen2.5-coder-1.5b, or choose another kind of intermediate model."
            )
        named, warnings = named_draft(draft, loaded, target, progress)
        return IntermediateModel(
            named.name,
            named.name,
            named.context_length,
            target.device,
            lambda capacity, taps: FittedSession(
                named.open(min(capacity, named.context_length)), named.vocab_size, target.vocab_size
            ),
            target_costs(named, progress, target_costs(target, progress)).curve,
            states=False,
            warnings=warnings,
        )
    title, options = TITLES[kind], dict[str, Any]()
    facts = {"model": f"{target.name} of {target.vocab_size} tokens", "kind": kind, "dtype": str(target.dtype)}
    start: Callable[..., Any]
    if kind == "small_draft":
        small = load_heads(SMALL, None, loaded, target)
        start, options = lambda capacity, taps: SmallSession(small, capacity), {"states": False, "branches": False}
    elif target.device.type != "cpu" and kind in CAPTURED:
        title, numbers = CAPTURED[kind], _chosen(kind, target)
        progress(f"Making {title}", None)

        def captured() -> Target:
            return captured_copy(target, layouts_of("int8", target.device), numbers, title)

        copied: Target = cached(target.model, ("captured", kind, target.tier), captured)
        start, facts["tier"] = lambda capacity, taps: copied.open(min(capacity, copied.context_length), taps), target.tier
    else:
        start = partial(LeanSession, cached(target.model, ("copy", kind), lambda: _copy(kind, target, progress)))
    model = IntermediateModel(kind, title, target.context_length, target.device, start, lambda: costs.curve(), **options)
    costs = ModelCosts(facts, model, progress, TIMED, not model.branches, target_costs(target, progress))
    return model


def layer_parallel(
    kind: str, group: int, draft: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress
) -> tuple[str, SmallLM | LeanDecoder, tuple[str, ...]]:
    """Return name, network and warnings of a draft model that may run the attention of up to ``group`` layers in parallel.

    ``kind`` is "small_draft", "copy" for the target in 8 bits, or "draft" for the model named ``draft``. On several GPUs,
    a named model's layers are assigned to them in turn. Raises ModelUnavailable if the model is missing or its architecture
    is not supported.
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
    if kind == "draft" and draft and draft != SMALL:
        model, warnings = named_draft(draft, loaded, target, progress)
        check_copy(model)
        count, first = torch.cuda.device_count() if model.device.type == "cuda" else 0, model.device.index or 0
        spread = [torch.device("cuda", (first + number) % count) for number in range(count)]
        return model.name, lean_copy(model, group=group, devices=spread), warnings
    return SMALL, load_heads(SMALL, None, loaded, target), ()


def _copy(kind: str, target: CausalTarget, progress: Progress) -> LeanDecoder:
    making = f"Making {TITLES[kind]}"
    progress(making, None)
    check_copy(target)
    if kind == "plain_copy":
        return lean_copy(target)
    layouts = layouts_of("int8" if kind == "int8" else "int4", target.device)
    return lean_copy(target, layouts, _chosen(kind, target), progress=lambda share: progress(making, share))


def _chosen(kind: str, target: CausalTarget) -> list[int] | None:
    """Numbers of the layers in a copy of this kind, None for all."""
    if kind != "fewer_layers":
        return None
    layers = int(target.config.num_hidden_layers)
    if layers < 3 * LEFT_OUT:
        raise ModelUnavailable(f"{target.name} has only {layers} layers: choose another intermediate model, such as int8.")
    first = layers // 2 - LEFT_OUT // 2
    return [number for number in range(layers) if not first <= number < first + LEFT_OUT]
