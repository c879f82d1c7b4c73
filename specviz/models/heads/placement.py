"""Device placement of a draft model's layers: one device, or several in accelerate's device-map notation.

Layers whose attention runs in parallel should lie on different devices, so maps made here assign layers in turn. A model that
accelerate has dispatched (``device_map`` of transformers' ``from_pretrained``) keeps its placement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import check_device_map

from specviz.errors import BadInput

DeviceMap = Mapping[str, Any]
LAYERS = "model.layers"


def dealt(layers: int, devices: Sequence[str | int | torch.device]) -> dict[str, Any]:
    """Return a decoder's device map: its layers on the devices in turn, everything else on the first device."""
    ends = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"), devices[0])
    return ends | {f"{LAYERS}.{number}": devices[number % len(devices)] for number in range(layers)}


def places(model: Any, layers: int, device_map: DeviceMap | None = None) -> list[torch.device]:
    """Return the device of every layer. Raises BadInput if the map leaves out a part of the model."""
    placement = device_map or getattr(model, "hf_device_map", None)
    if not placement:
        return [model.device] * layers
    try:
        check_device_map(model, dict(placement))
    except ValueError as problem:
        raise BadInput(f"The device map does not fit the model: {problem}") from problem
    return [_place(placement, f"{LAYERS}.{number}") for number in range(layers)]


def _place(device_map: DeviceMap, name: str) -> torch.device:
    """Device of the longest entry that contains ``name``; accelerate writes a GPU as its number."""
    while name and name not in device_map:
        name = name.rpartition(".")[0]
    place = device_map[name]
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def several(device: torch.device, layers: int) -> DeviceMap | None:
    """Return a map over all GPUs, starting at ``device``, if there is more than one, else None."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 1
    if gpus < 2:
        return None
    first = device.index or 0
    return dealt(layers, [(first + number) % gpus for number in range(gpus)])
