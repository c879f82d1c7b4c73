"""Non-blocking host-to-device copy through pinned memory."""

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
