"""Non-blocking host-to-device copies through pinned memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def to_device(values: Sequence[Any], device: torch.device | str, dtype: torch.dtype = torch.long) -> Tensor:
    """``values`` (nested sequences of numbers) as a tensor on ``device``."""
    device = torch.device(device)
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A CPU tensor on ``device``."""
    device = torch.device(device)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def overwrite(destination: Tensor, values: Sequence[Any] | Tensor) -> None:
    """Put ``values`` (nested sequences of numbers, or a CPU tensor) into ``destination``, which keeps its address."""
    pinned = destination.device.type == "cuda"
    if isinstance(values, Tensor):
        source = values.pin_memory() if pinned else values
    else:
        source = torch.tensor(values, dtype=destination.dtype, pin_memory=pinned)
    destination.copy_(source, non_blocking=pinned)
