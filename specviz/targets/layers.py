"""Facts about a decoder's layers and positions, read from a transformers config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specviz.errors import ModelUnavailable

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
REREADS = {"phi3", "phimoe", "phi4_multimodal"}
"""Model types whose ``generate`` drops its cache and prefills again where the long factors begin.

In other models, cached entries keep their short factors.
"""


def layer_values(config: Any, name: str) -> tuple[Any, ...]:
    """Return the setting ``name`` of each decoder layer, None where unset.

    Configs such as Gemma 4's have settings that differ between layers, and raise if one is read for all layers.
    """
    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config] * int(config.num_hidden_layers)
    return tuple(getattr(layer, name, None) for layer in layers)


def layer_kinds(config: Any) -> tuple[str, ...]:
    """Return the kind of each decoder layer, as transformers names it; by the rule of transformers' caches if the config lists
    none."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        return tuple(layer_types)
    windows, chunks = layer_values(config, "sliding_window"), layer_values(config, "attention_chunk_size")
    return tuple(
        SLIDING if window is not None else FULL if chunk is None else CHUNKED
        for window, chunk in zip(windows, chunks, strict=True)
    )


def sliding_windows(config: Any, kinds: Sequence[str]) -> set[int | None]:
    """Return the distinct window sizes of the sliding layers in tokens; empty without sliding layers."""
    return {size for size, kind in zip(layer_values(config, "sliding_window"), kinds, strict=True) if kind == SLIDING}


def rope_kinds(config: Any) -> dict[str, Mapping[str, Any]]:
    """Return the kinds of rotary positions in use, with their settings; layer types may differ."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(parameters, Mapping):
        return {}
    nested = [part for part in parameters.values() if isinstance(part, Mapping)]
    return {str(part.get("rope_type", "default")): part for part in nested or [parameters]}


def boundary_of(config: Any) -> int:
    """Return the number of tokens up to which LongRoPE's short factors hold, or 0 if the model's factors never change.

    A pass whose last position is beyond this number uses the long factors in all rows (Phi-3, Phi-4-mini and similar). The
    factors of dynamic positions change beyond ``max_position_embeddings``, where the context ends.
    """
    long = rope_kinds(config).get("longrope", {})
    limit = int(long.get("original_max_position_embeddings") or 0)
    return limit if limit < int(getattr(config, "max_position_embeddings", 0) or 1 << 20) else 0


def changing_factors(config: Any) -> str:
    """Return the reason why targets without boundary support refuse this model, or ""."""
    boundary = boundary_of(config)
    return f"has rotary factors that change beyond {boundary} tokens, which only plain text targets support" if boundary else ""


OFFLOADED = ("cpu", "disk", "meta")


def devices_of(model: Any) -> tuple[str, ...]:
    """Return the devices of a dispatched model, first to last; () for a model on a single device."""
    placement = getattr(model, "hf_device_map", None) or {}
    names = dict.fromkeys(f"cuda:{place}" if isinstance(place, int) else str(place) for place in placement.values())
    return tuple(names) if len(names) > 1 else ()


def refuse_offloaded(model: Any, name: str) -> None:
    """Raise ModelUnavailable if parts of a model are offloaded, because each pass would fetch them again."""
    devices = devices_of(model)
    away = [place for place in devices if place in OFFLOADED and (place != "cpu" or any("cpu" not in one for one in devices))]
    if away or (model.device.type != "meta" and any(weight.is_meta for weight in model.parameters())):
        where = " and ".join(away) or "disk"
        raise ModelUnavailable(
            f"{name} has parts that are offloaded to the {where}, which each pass would fetch again: choose a smaller model or "
            "number format, or name more devices."
        )


def layer_devices(model: Any, layers: int) -> tuple[torch.device, ...]:
    """Return the device of each decoder layer of a dispatched model; () for any other model."""
    if not devices_of(model):
        return ()
    body = getattr(model.get_decoder(), "layers", ())
    places = tuple(next(layer.parameters()).device for layer in body)
    return places if len(places) == layers else ()
