"""Device placement of a loaded model's layers: all on one device, or dispatched over several by accelerate."""

from __future__ import annotations

from typing import Any

import torch

from specviz.errors import ModelUnavailable

OFFLOADED = ("cpu", "disk", "meta")


def devices_of(model: Any) -> tuple[str, ...]:
    """Return the devices of a dispatched model, first to last; empty for a model on a single device."""
    placement = getattr(model, "hf_device_map", None) or {}
    names = dict.fromkeys(f"cuda:{place}" if isinstance(place, int) else str(place) for place in placement.values())
    return tuple(names) if len(names) > 1 else ()


def refuse_offloaded(model: Any, name: str) -> None:
    """Raise ModelUnavailable if parts of a model are offloaded and would be fetched again for every pass."""
    devices = devices_of(model)
    away = [place for place in devices if place in OFFLOADED and (place != "cpu" or any("cpu" not in one for one in devices))]
    if away or (model.device.type != "meta" and any(weight.is_meta for weight in model.parameters())):
        where = " and ".join(away) or "disk"
        raise ModelUnavailable(
            f"{name} has parts that are offloaded to the {where}, so every pass would fetch them anew: choose a smaller model or "
            "number format, or name more devices."
        )


def layer_devices(model: Any, layers: int) -> tuple[torch.device, ...]:
    """Return the device of each decoder layer of a dispatched model; empty for any other model."""
    if not devices_of(model):
        return ()
    body = getattr(model.get_decoder(), "layers", ())
    places = tuple(next(layer.parameters()).device for layer in body)
    return places if len(places) == layers else ()
