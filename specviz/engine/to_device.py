"""Non-blocking copies to a device through pinned memory, caches of copied tensors, and a blocking copy to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import _lru_cache_wrapper, lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
_CACHES: list[_lru_cache_wrapper[Any]] = []


def device_cache(maxsize: int) -> Callable[[Callable[..., Result]], _lru_cache_wrapper[Result]]:
    """Decorator: ``lru_cache`` for a function of device tensors, emptied by :func:`clear_device_caches`."""

    def decorate(function: Callable[..., Result]) -> _lru_cache_wrapper[Result]:
        _CACHES.append(lru_cache(maxsize=maxsize)(function))
        return _CACHES[-1]

    return decorate


def clear_device_caches() -> None:
    """Empty each :func:`device_cache`; needed when a device's name may later denote another device."""
    for one in _CACHES:
        one.cache_clear()


def to_device(values: Sequence[Any], device: torch.device | str, dtype: torch.dtype = torch.long) -> Tensor:
    """Return ``values`` (nested sequences of numbers) as a tensor on ``device``."""
    device = torch.device(device)
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def copy_to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return ``tensor`` on ``device``. Copies from the host to a GPU use pinned memory and do not block."""
    device = torch.device(device)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def copy_into(destination: Tensor, values: Sequence[Any]) -> None:
    """Copy ``values`` (nested sequences of numbers) into ``destination``, which keeps its address."""
    pinned = destination.device.type == "cuda"
    destination.copy_(torch.tensor(values, dtype=destination.dtype, pin_memory=pinned), non_blocking=pinned)


def to_host(parts: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the host in one blocking transfer; shapes and dtypes are preserved.

    The transfer uses float32, or float64 if any tensor does, so integers must be below 2 ** 24.
    """
    kind = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
    flat = torch.cat([part.flatten().to(kind) for part in parts]).cpu().split([part.numel() for part in parts])
    return [copy.view(part.shape).to(part.dtype) for copy, part in zip(flat, parts, strict=True)]
