"""Gradients computed on all cores, and the fastest arithmetic of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.models.device import cores, cpu_has_bfloat16

Part = TypeVar("Part")


def sharing() -> int:
    """Limit torch to one thread and return the number of threads that share an update on a CPU."""
    workers = min(cores(), torch.get_num_threads())
    torch.set_num_threads(1)
    return workers


def gradients(
    parts: Sequence[Part], loss: Callable[[Part], Tensor], leaves: Sequence[Tensor], workers: int
) -> tuple[list[Tensor], float]:
    """Return the gradients of ``leaves`` and the loss, summed over ``parts``. A free worker takes the next part.

    Threads share parts rather than operations: a core that is busy with other programs then delays a single part, instead of
    every operation.
    """
    total: list[Tensor] = []
    value, waiting, lock, device = 0.0, list(reversed(parts)), Lock(), leaves[0].device

    def work() -> None:
        nonlocal total, value
        # One context for all parts, since autocast caches cast weights until the context ends. Casting weights for each part
        # would take as long as the products.
        with arithmetic(device):
            while waiting:
                try:
                    part = waiting.pop()
                except IndexError:  # another worker took the last part
                    return
                try:
                    lost = loss(part)
                    with torch.autocast(device.type, enabled=False):
                        part_gradients = torch.autograd.grad(lost, leaves)
                except BaseException:
                    waiting.clear()
                    raise
                with lock:
                    value += float(lost.detach())
                    # Not in place, since two leaves may share a gradient tensor.
                    total = [a + b for a, b in zip(total, part_gradients, strict=True)] if total else list(part_gradients)

    if workers == 1:
        work()
        return total, value
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()
    return total, value


def arithmetic(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context with autocast to bfloat16 if matrix products on ``device`` are faster in bfloat16."""
    return torch.autocast(device.type, torch.bfloat16) if products(device) == torch.bfloat16 else nullcontext()


def products(device: torch.device) -> torch.dtype:
    """Return the fastest dtype for matrix products on ``device``; for CPUs without bfloat16 arithmetic, float32."""
    return torch.bfloat16 if device.type != "cpu" or cpu_has_bfloat16() else torch.float32


def keep_cast(frozen: Tensor) -> None:
    """Make autocast cache the cast of a frozen tensor: autocast caches only tensors that require a gradient.

    No gradient is computed, since :func:`gradients` asks only for the gradients of the leaves.
    """
    frozen.requires_grad_()


def pad_rows(rows: Tensor, step: int = 64) -> Tensor:
    """Pad ``rows`` [row, width] with zeros to a multiple of ``step`` rows.

    oneDNN compiles and caches a kernel per shape. Without padding, compilation takes a quarter of the training time, and the
    cache gigabytes of memory.
    """
    return F.pad(rows, (0, 0, 0, -len(rows) % step))


def apply_padded(products: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return ``products(rows)`` for a row-wise function, with ``rows`` [row, width] padded by :func:`pad_rows`."""
    return products(pad_rows(rows))[: len(rows)]
