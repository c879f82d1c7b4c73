"""Gradients on all cores: threads that share an update by its parts, and the arithmetic a device is made for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.models.device import cpu_has_bfloat16

Part = TypeVar("Part")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sharing() -> int:
    """Threads that share an update on a processor; torch itself is kept to one from here on."""
    workers = min(cores(), torch.get_num_threads())
    torch.set_num_threads(1)
    return workers


def gradients(
    parts: Sequence[Part], loss: Callable[[Part], Tensor], leaves: Sequence[Tensor], workers: int
) -> tuple[list[Tensor], float]:
    """Sum over ``parts`` of the loss and its gradients. Each worker takes the next part when it is free.

    Threads share the work by parts and not inside each operation: a core that someone else is using then slows down
    only its own part, while operations split in two would wait for it thousands of times an update.
    """
    total: list[Tensor] = []
    value, waiting, lock, device = 0.0, list(reversed(parts)), Lock(), leaves[0].device

    def work() -> None:
        nonlocal total, value
        # One context for all parts: what autocast has cast once it keeps until the end of it, and casting the weights
        # anew for each part took as long as the products.
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
                    # Not in place: two leaves may have been given one and the same gradient tensor.
                    total = [a + b for a, b in zip(total, part_gradients, strict=True)] if total else list(part_gradients)

    if workers == 1:
        work()
        return total, value
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()
    return total, value


def arithmetic(device: torch.device) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16 where ``device`` is made for it, the rest and the weights in float32."""
    return torch.autocast(device.type, torch.bfloat16) if products(device) == torch.bfloat16 else nullcontext()


def products(device: torch.device) -> torch.dtype:
    """What ``device`` multiplies fastest in: a processor without bfloat16 of its own took sixteen times as long in it."""
    return torch.bfloat16 if device.type != "cpu" or cpu_has_bfloat16() else torch.float32


def keep_cast(frozen: Tensor) -> None:
    """Let autocast cast a tensor that is not learned once for all parts too: it keeps only what could want a gradient.
    None is computed, since :func:`gradients` asks for those of the leaves alone."""
    frozen.requires_grad_()


def evened(rows: Tensor, step: int = 64) -> Tensor:
    """``rows`` [row, width] with zeros behind them up to a multiple of ``step``.

    oneDNN makes a kernel for every shape it meets, and keeps gigabytes of them. Where hardly two parts had as many rows, making
    them took a quarter of a training's time.
    """
    return F.pad(rows, (0, 0, 0, -len(rows) % step))


def evenly(products: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """``products`` of ``rows`` [row, width], row by row, over as many rows as :func:`evened` makes them."""
    return products(evened(rows))[: len(rows)]
