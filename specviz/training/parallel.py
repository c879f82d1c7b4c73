"""Gradients on all cores: threads that share the parts of an update, and the fastest arithmetic of a device."""

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
    """Sum the loss and its gradients over ``parts``; a worker takes the next part as soon as it is free.

    Threads share the work by parts, not inside each operation. A core busy with other programs then slows down only its own
    part, while split operations would wait for it thousands of times per update.
    """
    total: list[Tensor] = []
    value, waiting, lock, device = 0.0, list(reversed(parts)), Lock(), leaves[0].device

    def work() -> None:
        nonlocal total, value
        # One context for all parts: autocast caches its casts until the context ends, and casting the weights again for each
        # part took as long as the products.
        with arithmetic(device):
            while waiting:
                try:
                    part = waiting.pop()
                except IndexError:  # another worker was faster
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
                    # Not in place: two leaves may share one gradient tensor.
                    total = [a + b for a, b in zip(total, part_gradients, strict=True)] if total else list(part_gradients)

    if workers == 1:
        work()
        return total, value
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()
    return total, value


def arithmetic(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast of matrix products to bfloat16 if ``device`` multiplies faster in it; all else stays float32."""
    return torch.autocast(device.type, torch.bfloat16) if products(device) == torch.bfloat16 else nullcontext()


def products(device: torch.device) -> torch.dtype:
    """The fastest dtype for products on ``device``. A CPU without bfloat16 arithmetic took sixteen times as long in bfloat16."""
    return torch.bfloat16 if device.type != "cpu" or cpu_has_bfloat16() else torch.float32


def keep_cast(frozen: Tensor) -> None:
    """Make autocast cache the cast of a frozen tensor, which it does only for tensors that require a gradient.

    No gradient is computed for it, since :func:`gradients` requests those of the leaves alone.
    """
    frozen.requires_grad_()


def pad_rows(rows: Tensor, step: int = 64) -> Tensor:
    """Pad ``rows`` [row, width] with zero rows to a multiple of ``step``.

    oneDNN compiles a kernel for every shape and caches gigabytes of them. When hardly any two parts had the same number of rows,
    compiling took a quarter of the training time.
    """
    return F.pad(rows, (0, 0, 0, -len(rows) % step))


def apply_padded(products: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply the row-wise ``products`` to ``rows`` [row, width], padded by :func:`pad_rows`."""
    return products(pad_rows(rows))[: len(rows)]
